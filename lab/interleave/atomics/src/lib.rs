//! Stands in for the core library where code of the project is run under loom: the same paths, loom's
//! atomics behind them. Loom's cannot be made in constants; these are made at their first use.

pub use core::{array, fmt, iter, mem, num, ops};

/// As in the core library.
pub mod cell {
    use std::sync::OnceLock;

    /// A cell of which loom knows the threads that have come to it, and when. Each must have come after the last.
    #[derive(Debug)]
    pub struct UnsafeCell<T> {
        value: core::cell::UnsafeCell<T>,
        users: OnceLock<loom::cell::UnsafeCell<()>>,
    }

    impl<T> UnsafeCell<T> {
        /// As in the core library.
        pub const fn new(value: T) -> Self {
            Self {
                value: core::cell::UnsafeCell::new(value),
                users: OnceLock::new(),
            }
        }

        /// As in the core library.
        pub fn get(&self) -> *mut T {
            let users = self.users.get_or_init(|| loom::cell::UnsafeCell::new(()));
            users.with_mut(|_| ());
            self.value.get()
        }
    }
}

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

                impl Default for $name {
                    fn default() -> Self {
                        Self::new(<$value>::default())
                    }
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
                    ///
                    /// # Errors
                    /// It was another value, or it was not to be.
                    pub fn compare_exchange_weak(
                        &self,
                        from: $value,
                        to: $value,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$value, $value> {
                        self.inner()
                            .compare_exchange_weak(from, to, success, failure)
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
                    pub fn store(&self, value: $value, order: Ordering) {
                        self.inner().store(value, order);
                    }

                    /// As in the core library.
                    pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                        self.inner().fetch_add(value, order)
                    }

                    /// As in the core library.
                    pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                        self.inner().fetch_max(value, order)
                    }

                    /// As in the core library.
                    pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                        self.inner().fetch_sub(value, order)
                    }
                }
            };
        }

        atomic!(AtomicBool, bool);

        impl AtomicBool {
            /// As in the core library. Loom has a store come before a swap that has seen what was there before the
            /// store, and so a claim that is given up be taken for ever. A swap of the same order comes last.
            pub fn store(&self, value: bool, order: Ordering) {
                if matches!(order, Ordering::Release) {
                    self.inner().swap(value, order);
                } else {
                    self.inner().store(value, order);
                }
            }
        }

        number!(AtomicU8, u8);
        number!(AtomicU16, u16);
        number!(AtomicU32, u32);
        number!(AtomicU64, u64);
        number!(AtomicUsize, usize);
    }
}
