//! Numbers: those that clients give their requests, and those that the requests have on the port.

use std::collections::BTreeMap;

use bulkhead_abi::control::{EVENT_STATE, Message, Request};

/// Who has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The daemon.
    Daemon,
    /// This client.
    Client(u64),
}

/// For whom a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// For who has asked, with the number that it gave.
    Answer(Asker, Message),
    /// For all.
    Event(Message),
    /// For who had the port before.
    Nobody,
}

/// Requests that have not been answered.
#[derive(Debug)]
pub struct Relay {
    last: u32,
    pending: BTreeMap<u32, (Asker, u32)>,
}

impl Relay {
    /// Numbers begin behind `last`, which who had the port before has hardly used just now.
    pub const fn new(last: u32) -> Self {
        Self {
            last,
            pending: BTreeMap::new(),
        }
    }

    /// The request as it goes to the port.
    pub fn forward(&mut self, asker: Asker, request: Request) -> Request {
        loop {
            self.last = self.last.wrapping_add(1);
            // A client that has gone leaves its numbers until they are answered: nobody else gets its answers.
            if self.last != 0 && !self.pending.contains_key(&self.last) {
                break;
            }
        }
        self.pending.insert(self.last, (asker, request.number));
        Request {
            number: self.last,
            ..request
        }
    }

    /// For whom a message from the port is.
    pub fn route(&mut self, message: Message) -> Route {
        if message.number == 0 {
            return if message.kind >= EVENT_STATE {
                Route::Event(message)
            } else {
                Route::Nobody
            };
        }
        match self.pending.remove(&message.number) {
            Some((asker, number)) => Route::Answer(asker, Message { number, ..message }),
            None => Route::Nobody,
        }
    }

    /// The last number that was used.
    pub const fn last(&self) -> u32 {
        self.last
    }

    /// How many requests of a client are not answered.
    pub fn pending(&self, asker: Asker) -> usize {
        self.pending
            .values()
            .filter(|(one, _)| *one == asker)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clients_may_use_the_same_number() {
        let mut relay = Relay::new(u32::MAX - 1);
        let request = Request {
            number: 7,
            ..Request::default()
        };
        let first = relay.forward(Asker::Client(1), request).number;
        let second = relay.forward(Asker::Client(2), request).number;
        assert_eq!((first, second), (u32::MAX, 1), "0 is no number");
        let answer = |number| Message {
            number,
            kind: 3,
            ..Message::default()
        };
        assert_eq!(
            relay.route(answer(second)),
            Route::Answer(Asker::Client(2), answer(7))
        );
        assert_eq!(relay.route(answer(second)), Route::Nobody);
        assert_eq!(relay.pending(Asker::Client(1)), 1);
        assert_eq!(
            relay.route(answer(first)),
            Route::Answer(Asker::Client(1), answer(7))
        );
        assert_eq!(relay.pending(Asker::Client(1)), 0);
        let event = Message {
            kind: EVENT_STATE,
            ..Message::default()
        };
        assert_eq!(relay.route(event), Route::Event(event));
        assert_eq!(relay.route(answer(0)), Route::Nobody);
    }

    #[test]
    fn a_number_is_not_used_again_before_its_answer() {
        let mut relay = Relay::new(0);
        let number = relay.forward(Asker::Client(1), Request::default()).number;
        relay.last = number.wrapping_sub(1);
        assert_ne!(
            relay.forward(Asker::Daemon, Request::default()).number,
            number
        );
    }
}
