//! Why a part of what a node says was not taken.

/// Why an inventory, an entry, a pool or an answer was left out, in whole or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Reason {
    /// It is no JSON object that can be read.
    Undecodable,
    /// The object's name could not be a node's.
    Name,
    /// `entries` or `pools` is no list.
    NoList,
    /// No claim id, or no pool template.
    NoId,
    /// A field of a wrong type.
    WrongType,
    /// A field over its limit.
    TooLong,
    /// Characters that do not belong into the field.
    Characters,
    /// A time that is none; only the time was left out.
    Time,
    /// A claim id that was there before in the same list.
    Duplicate,
    /// Beyond the most that are taken.
    TooMany,
    /// An address that is no address, or a link-local one.
    Address,
    /// An address that is not the node's.
    ForeignAddress,
    /// An address that is another node's by now.
    TakenAddress,
}

impl Reason {
    /// The word in metrics and log lines.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Undecodable => "undecodable",
            Self::Name => "name",
            Self::NoList => "no_list",
            Self::NoId => "no_id",
            Self::WrongType => "wrong_type",
            Self::TooLong => "too_long",
            Self::Characters => "characters",
            Self::Time => "time",
            Self::Duplicate => "duplicate",
            Self::TooMany => "too_many",
            Self::Address => "address",
            Self::ForeignAddress => "foreign_address",
            Self::TakenAddress => "taken_address",
        }
    }
}

/// How many parts of one report were not taken, by reason. Few reasons at once, mostly none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rejections(Vec<(Reason, u64)>);

impl Rejections {
    pub(super) fn add(&mut self, reason: Reason) {
        self.add_many(reason, 1);
    }

    pub(super) fn add_all(&mut self, others: &Self) {
        for (reason, count) in others.iter() {
            self.add_many(reason, count);
        }
    }

    fn add_many(&mut self, reason: Reason, more: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += more,
            None => self.0.push((reason, more)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Reason, u64)> {
        self.0.iter().copied()
    }
}
