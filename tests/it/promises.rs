//! Promises that a test under random schedules checks, one sentence each, and the word that one of them was not kept.

/// Makes `Property`, what is promised, with `Violation` and `Verdict`.
macro_rules! promises {
    ($($name:ident: $sentence:literal,)*) => {
        /// What is promised.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Property {
            $(#[doc = $sentence] $name,)*
        }

        /// A promise that was not kept.
        #[derive(Clone, Debug)]
        pub(super) struct Violation {
            pub(super) property: Property,
            pub(super) what: String,
        }

        pub(super) type Verdict<T = ()> = Result<T, Violation>;

        impl Property {
            fn sentence(self) -> &'static str {
                match self {
                    $(Self::$name => $sentence,)*
                }
            }

            pub(super) fn broken<T>(self, what: impl Into<String>) -> Verdict<T> {
                Err(Violation {
                    property: self,
                    what: what.into(),
                })
            }

            /// Breaks unless it `holds`.
            pub(super) fn demand(self, holds: bool, what: impl FnOnce() -> String) -> Verdict {
                match holds {
                    true => Ok(()),
                    false => self.broken(what()),
                }
            }
        }

        impl std::fmt::Display for Violation {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let Self { property, what } = self;
                write!(f, "{property:?}: {}\n{what}", property.sentence())
            }
        }
    };
}
