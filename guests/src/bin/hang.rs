//! Claim: EL2's monitor says why a guest hangs. This one hangs in the way that `way=` (boot
//! arguments) says.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, gic, guest, memory, power, println, ruin, sysreg, timer};

guest!(main = main, irq = on_irq);

fn main(board: &'static Board) {
    gic::init();
    gic::enable(timer::INTID);
    println!("hangs from now on");
    match board.argument("way").unwrap_or(0) {
        // Asleep, no timer armed.
        0 => sleep(),
        // Asleep until a timer that is far away.
        1 => {
            timer::arm(timer::now() + timer::frequency() * 1_000);
            sleep()
        }
        // Asleep, the timer's interrupt masked in the timer.
        2 => {
            bulkhead_guests::msr!("cntv_cval_el0", timer::now());
            bulkhead_guests::msr!("cntv_ctl_el0", 3);
            sleep()
        }
        // Asleep, the interrupt not enabled.
        3 => {
            gic::disable(timer::INTID);
            timer::arm(timer::now());
            sleep()
        }
        // Asleep, the interrupt masked by its priority.
        4 => {
            gic::set_mask(0);
            gic::enable(8);
            gic::set_pending(8);
            sleep()
        }
        // Asleep, the distributor closed.
        5 => {
            gic::close();
            gic::enable(8);
            gic::set_pending(8);
            sleep()
        }
        // Spinning with all masks closed while an interrupt is pending.
        6 => {
            gic::enable(8);
            sysreg::mask_all();
            gic::set_pending(8);
            ruin::spin()
        }
        // Spinning, nothing pending.
        7 => ruin::spin(),
        // It has never ended an interrupt.
        8 => {
            gic::enable(8);
            gic::enable(9);
            gic::set_pending(8);
            while gic::acknowledge().intid() != 8 {}
            gic::set_pending(9);
            sleep()
        }
        // Spinning behind a word of another page that looks like WFI: of its RAM, or of memory that it shares.
        way @ (10 | 11) => {
            let mut pages = [None, None];
            memory::free_pages(board, |page| {
                if let Some(place) = pages.iter_mut().find(|place| place.is_none()) {
                    *place = Some(page);
                }
            });
            let shared = board.shared.first().map(|shared| shared.range.base);
            if let [Some(own), Some(code)] = pages
                && let Some(first) = if way == 10 { Some(own.base()) } else { shared }
            {
                ruin::spin_behind_wfi(first, &code);
            }
            println!("FAIL: too little memory")
        }
        _ => power::off(),
    }
}

fn sleep() -> ! {
    sysreg::irq_on();
    loop {
        sysreg::wfi();
    }
}

fn on_irq(_entered: u64) {
    println!("FAIL: an interrupt came");
    power::off();
}
