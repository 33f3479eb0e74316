//! What could not be counted, by reason.

macro_rules! reasons {
    ($($variant:ident $name:literal $doc:literal)*) => {
        /// Why an event is missing from the totals.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Lost {
            $(#[doc = $doc] $variant,)*
        }

        impl Lost {
            /// Every reason, in the order of its number.
            pub const ALL: &[Lost] = &[$(Lost::$variant),*];

            /// The name in metrics, tables and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Lost::$variant => $name),* }
            }

            /// What happened, for people.
            pub const fn help(self) -> &'static str {
                match self { $(Lost::$variant => $doc),* }
            }
        }
    };
}

reasons! {
    Site "site" "A probe fired at an address that no site of the plan has; the event was not counted."
    Iterator "iterator" "The iterator could not be read; the call was counted under kind other."
    Flight "flight" "A call was not matched with its return: it was counted, its bytes done, error and time were not."
    Process "process" "It could not be told whose the event was while only some processes count; it was not counted."
    Record "record" "The record of a CPU or a function lay outside the map; the event was not counted."
}

/// Losses of one CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostRecord {
    /// Events lost, by [`Lost`].
    pub events: [u64; 8],
}

const _: () = assert!(Lost::ALL.len() <= 8 && size_of::<LostRecord>() == 64);
