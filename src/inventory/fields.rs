//! The fields of a report, each with its bound. What a publisher sends is kept in memory and shown to users.

use compact_str::CompactString;

use super::{
    lenient::Scalar,
    rejection::{Reason, Rejections},
};
use crate::{api::PoolKey, meta::UnixTime};

/// Longest claim id, checkpoint id, and word such as a phase; the daemon's own have some twenty characters.
pub(super) const MAX_WORD: usize = 128;
/// Longest claim reference. One that names an object has at most 63 + 1 + 253 characters; a longer one names none.
pub(super) const MAX_REFERENCE: usize = 512;
/// Longest address of a sandbox: a DNS name and a port.
pub(super) const MAX_ADDRESS: usize = 300;

/// Go's zero time, and whatever else lies before the year two, is none.
const YEAR_TWO: UnixTime = UnixTime::from_secs(-62_104_060_800);

/// A text of at most `max` bytes; empty without one.
pub(super) fn text(scalar: Scalar, max: usize) -> Result<CompactString, Reason> {
    match scalar {
        Scalar::Absent => Ok(CompactString::default()),
        Scalar::Text(text) if text.len() <= max => Ok(text),
        Scalar::Text(_) | Scalar::TooLong => Err(Reason::TooLong),
        Scalar::Flag(_) | Scalar::Number(_) | Scalar::Other => Err(Reason::WrongType),
    }
}

/// As [`text`], of printable ASCII without a space: fit for a log line, a header and a label of a metric.
pub(super) fn word(scalar: Scalar, max: usize) -> Result<CompactString, Reason> {
    let word = text(scalar, max)?;
    if word.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(word)
    } else {
        Err(Reason::Characters)
    }
}

/// A time. One that cannot be read is counted and none, for a report without it still says much.
pub(super) fn time(scalar: &Scalar, rejections: &mut Rejections) -> Option<UnixTime> {
    let time = match scalar {
        Scalar::Absent => return None,
        Scalar::Text(text) => text.parse::<UnixTime>().ok(),
        _ => None,
    };
    if time.is_none() {
        rejections.add(Reason::Time);
    }
    time.filter(|time| *time >= YEAR_TWO)
}

/// A number of VMs; one below zero is zero.
pub(super) fn count(scalar: &Scalar) -> Result<u32, Reason> {
    match scalar {
        Scalar::Absent => Ok(0),
        Scalar::Number(number) => Ok(u32::try_from((*number).max(0)).unwrap_or(u32::MAX)),
        _ => Err(Reason::WrongType),
    }
}

/// The pool that template, lane and size name; `None` without a template.
pub(super) fn pool_key(
    template: Scalar,
    net: Scalar,
    size: Scalar,
) -> Result<Option<PoolKey>, Reason> {
    let or = |given: CompactString, default: &str| match given {
        none if none.is_empty() => default.into(),
        given => given,
    };
    let template = word(template, PoolKey::MAX_TEMPLATE)?;
    let net = or(word(net, MAX_WORD)?, PoolKey::DEFAULT_NET);
    let size = or(word(size, MAX_WORD)?, PoolKey::DEFAULT_SIZE);
    Ok((!template.is_empty()).then_some(PoolKey {
        template,
        net,
        size,
    }))
}
