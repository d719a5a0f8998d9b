//! What the program `hostile-backend` does to a disk when `hostile-backend-disk`, which drives that disk, tells it to by a request. Both know this list.

/// Name of the disk in the description.
pub const DISK: &str = "hostile";
/// The sector that takes orders: its first word is the number of a misdeed in [`ALL`].
pub const ORDER: u64 = 0;
/// The sector whose first word is the number of the session.
pub const SESSION: u64 = 1;
/// The first sector with data.
pub const DATA: u64 = 8;
/// Most requests for data that a misdeed waits for ([`Misdeed::requests`]): the backend has all of them then.
pub const REQUESTS: usize = 4;
/// How long a misdeed lasts that is not over at once, in microseconds.
pub const LASTS: u64 = 20_000;
/// Sessions that the backend asks for, one behind the other.
pub const RESTARTS: u32 = 16;

/// An id of a used element.
#[derive(Clone, Copy, Debug)]
pub enum Id {
    /// That of a request.
    Of(usize),
    /// Of a slot that nothing is in.
    Free,
    /// Of the second slot of the first request.
    Second,
    /// One behind the table.
    Behind,
    /// The first request's, with a bit above the 16 that a slot's number has.
    Wide,
    /// All ones.
    Ones,
    /// Of a request of the session before, in a slot that this one has not used yet.
    Before,
}

/// A length of a used element.
#[derive(Clone, Copy, Debug)]
pub enum Len {
    /// As many bytes as were written.
    Right,
    /// One more than can be written.
    Above,
    /// All ones.
    Ones,
}

/// How the backend ends.
#[derive(Clone, Copy, Debug)]
pub enum Death {
    /// By an exception that no vector takes.
    Crash,
    /// By PSCI SYSTEM_RESET.
    Reset,
    /// By PSCI SYSTEM_OFF: somebody has to start it again.
    Off,
}

/// What the backend does with the requests.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// It gives these back in one batch, and counts so many more.
    Gives(&'static [(Id, Len)], u16),
    /// It gives the first one back, waits, and gives it back again.
    Again,
    /// For a while it says nothing at all.
    Silence,
    /// For a while it rings for every device, one by one and all at once.
    Bells,
    /// For a while it writes anything of every width to any place of the page by which it rings, and reads it.
    OddBells,
    /// For a while it overwrites the words by which it is told.
    Told,
    /// For a while its config is another one each time.
    Configs,
    /// For a while its config is being changed.
    HalfConfig,
    /// For a while it overwrites all that EL2 has written to the device page.
    Words,
    /// For a while descriptors and the available ring are noise, and still are when it gives the requests back.
    Rings,
    /// For a while it says that it is ready for sessions that there are not, wants those to end, and refuses the device.
    Future,
    /// It is ready for the next session before it breaks a rule of this one.
    Early,
    /// It breaks a rule, and then is ready for sessions of others for a while.
    Late,
    /// It breaks a rule, and then refuses the device for a while, with a reason as one has who cannot serve what is planned.
    Refuses,
    /// It asks for another session again and again.
    Restarts,
    /// It ends.
    Dies(Death),
}

/// Something that a backend should not do.
#[derive(Clone, Copy, Debug)]
pub struct Misdeed {
    /// Name of the check.
    pub name: &'static str,
    /// What it is.
    pub act: Act,
    /// Number of sessions that begin because of it.
    pub sessions: u32,
}

impl Misdeed {
    /// Number of requests for data that it takes: one where slots of the time before a reset are not to be in use again.
    pub fn requests(&self) -> usize {
        match self.act {
            Act::Gives(&[(Id::Before, _)], _) => 1,
            _ => REQUESTS,
        }
    }
}

const fn ends(name: &'static str, act: Act) -> Misdeed {
    Misdeed {
        name,
        act,
        sessions: 1,
    }
}

const fn stays(name: &'static str, act: Act) -> Misdeed {
    Misdeed {
        name,
        act,
        sessions: 0,
    }
}

/// It gives back what it should not, in one batch.
const fn gives(name: &'static str, elements: &'static [(Id, Len)], more: u16) -> Misdeed {
    ends(name, Act::Gives(elements, more))
}

/// An answer that is as it should be.
const fn right(request: usize) -> (Id, Len) {
    (Id::Of(request), Len::Right)
}

/// All of them.
pub const ALL: &[Misdeed] = &[
    gives("an id behind the table", &[(Id::Behind, Len::Right)], 0),
    gives("an id of more than 16 bits", &[(Id::Wide, Len::Right)], 0),
    gives("an id of all ones", &[(Id::Ones, Len::Right)], 0),
    gives("an id of a free slot", &[(Id::Free, Len::Right)], 0),
    gives("an id of a second slot", &[(Id::Second, Len::Right)], 0),
    gives("an id twice in a batch", &[right(0), right(0)], 0),
    ends("an id twice", Act::Again),
    gives(
        "a wrong id behind a right one",
        &[right(2), (Id::Behind, Len::Right)],
        0,
    ),
    gives("a length one too long", &[(Id::Of(0), Len::Above)], 0),
    gives(
        "a length of all ones behind right ones",
        &[right(0), right(3), (Id::Of(1), Len::Ones)],
        0,
    ),
    gives(
        "an index one too far",
        &[right(0), right(1), right(2), right(3)],
        1,
    ),
    gives("an index that goes back", &[], u16::MAX),
    gives("an index far away", &[], 0x8000),
    stays("silence", Act::Silence),
    stays("doorbells without end", Act::Bells),
    stays("doorbells of every kind", Act::OddBells),
    stays("what it is told by, overwritten", Act::Told),
    stays("a config that changes all the time", Act::Configs),
    stays("a config that is never whole", Act::HalfConfig),
    stays("the device page, overwritten", Act::Words),
    stays("rings, overwritten", Act::Rings),
    stays("ready for sessions to come", Act::Future),
    ends("ready too early", Act::Early),
    ends("not ready for long", Act::Late),
    ends("a refusal", Act::Refuses),
    Misdeed {
        name: "sessions without end",
        act: Act::Restarts,
        sessions: RESTARTS,
    },
    gives("an id of before a reset", &[(Id::Before, Len::Right)], 0),
    ends("a crash", Act::Dies(Death::Crash)),
    ends("a reset", Act::Dies(Death::Reset)),
    ends("its end", Act::Dies(Death::Off)),
];
