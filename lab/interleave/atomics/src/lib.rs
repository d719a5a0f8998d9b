//! Stands in for the core library where code of the project is run under loom: the same paths, loom's
//! atomics behind them. Loom's cannot be made in constants; these are made at their first use.

/// As in the core library.
pub mod sync {
    /// As in the core library.
    pub mod atomic {
        use std::sync::OnceLock;

        pub use loom::sync::atomic::{Ordering, fence};

        macro_rules! atomic {
            ($name:ident, $value:ty) => {
                /// The atomic of loom, made at its first use.
                #[derive(Debug)]
                pub struct $name {
                    first: $value,
                    inner: OnceLock<loom::sync::atomic::$name>,
                }

                impl $name {
                    /// As in the core library.
                    pub const fn new(first: $value) -> Self {
                        Self {
                            first,
                            inner: OnceLock::new(),
                        }
                    }

                    fn inner(&self) -> &loom::sync::atomic::$name {
                        self.inner
                            .get_or_init(|| loom::sync::atomic::$name::new(self.first))
                    }

                    /// As in the core library.
                    pub fn load(&self, order: Ordering) -> $value {
                        self.inner().load(order)
                    }

                    /// As in the core library.
                    pub fn store(&self, value: $value, order: Ordering) {
                        self.inner().store(value, order);
                    }

                    /// As in the core library.
                    pub fn swap(&self, value: $value, order: Ordering) -> $value {
                        self.inner().swap(value, order)
                    }

                    /// As in the core library.
                    ///
                    /// # Errors
                    /// It was another value.
                    pub fn compare_exchange(
                        &self,
                        from: $value,
                        to: $value,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$value, $value> {
                        self.inner().compare_exchange(from, to, success, failure)
                    }

                    /// As in the core library.
                    pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                        self.inner().fetch_or(value, order)
                    }

                    /// As in the core library.
                    pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                        self.inner().fetch_and(value, order)
                    }
                }
            };
        }

        macro_rules! number {
            ($name:ident, $value:ty) => {
                atomic!($name, $value);

                impl $name {
                    /// As in the core library.
                    pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                        self.inner().fetch_add(value, order)
                    }

                    /// As in the core library.
                    pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                        self.inner().fetch_sub(value, order)
                    }
                }
            };
        }

        atomic!(AtomicBool, bool);
        number!(AtomicU8, u8);
        number!(AtomicU32, u32);
        number!(AtomicU64, u64);
    }
}
