//! The consoles of VMs, as managers read them and type on them.

use bulkhead_abi::control::{Message, Request, Status};

use super::{Data, Hand, InSession, PATIENCE_US, Session, fill, is_up};
use crate::control::{Board, Denied};

impl<B: Board> InSession<'_, B> {
    /// Reads what a VM has printed. A manager that has read all is told when there is more.
    pub(super) fn output(&mut self, message: &mut Message, vm: usize, from: u64, most: u16) {
        let Session { printed, data, .. } = &mut *self.session;
        let mut found = self.board.printed(vm, from, most.into(), printed);
        if found.first.saturating_add(found.bytes.into()) == found.next {
            self.events.listen(vm);
            if self.board.printed(vm, found.next, 0, &mut []).next != found.next {
                found = self.board.printed(vm, from, most.into(), printed);
            }
        }
        *data = Data::Printed;
        message.data = found.bytes as u16;
        fill(message, &[found.first, found.next]);
    }

    /// Has bytes typed, unless the VM is not to be interrupted: gives a status then.
    pub(super) fn input(
        &mut self,
        request: &Request,
        vm: usize,
        bytes: u32,
        words: [u64; 3],
    ) -> Result<Option<Status>, Denied> {
        let phase = self.board.vm(vm).phase;
        if !is_up(phase) {
            return Err(Denied::Phase(phase));
        }
        if self.is_promised_no_exits(vm) {
            return Ok(Some(Status::WouldExit));
        }
        if !self.board.type_on(vm, bytes, words) {
            return Err(Denied::Busy);
        }
        self.session.due = self.in_us(PATIENCE_US);
        self.session.hand = Hand::Typed(*request);
        Ok(None)
    }
}
