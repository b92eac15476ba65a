//! The view of the cluster that a node reports.

use std::io;
use std::ops::RangeInclusive;

use crate::{RedisServer, RespValue};

/// Returns whether a node reports a healthy cluster with the expected distribution of slots.
pub(super) fn knows(node: &RedisServer, expected: &[(RangeInclusive<u16>, u16)]) -> io::Result<bool> {
    let info = node.try_command(&["CLUSTER", "INFO"])?.text();
    let mut seen = ranges(&node.try_command(&["CLUSTER", "SLOTS"])?);
    seen.sort_by_key(|(slots, _)| *slots.start());
    Ok(info.lines().any(|line| line == "cluster_state:ok") && seen == expected)
}

/// Returns the reply to `CLUSTER SLOTS`: ranges, each with the port of its owner.
pub(super) fn ranges(reply: &RespValue) -> Vec<(RangeInclusive<u16>, u16)> {
    let number = |value: &RespValue| u16::try_from(value.integer()).ok();
    let range = |entry: &RespValue| match entry.items() {
        [first, last, owner, ..] => Some((number(first)?..=number(last)?, number(owner.items().get(1)?)?)),
        _ => None,
    };
    reply.items().iter().filter_map(range).collect()
}

pub(super) fn owner_in(ranges: &[(RangeInclusive<u16>, u16)], slot: u16) -> Option<u16> {
    ranges
        .iter()
        .find(|(slots, _)| slots.contains(&slot))
        .map(|(_, port)| *port)
}

/// Returns whether a node knows the replicas: pairs of the replica's and the primary's port.
pub(super) fn knows_replicas(node: &RedisServer, expected: &[(u16, u16)]) -> io::Result<bool> {
    let nodes = node.try_command(&["CLUSTER", "NODES"])?.text();
    let lines: Vec<NodeLine<'_>> = nodes.lines().filter_map(NodeLine::read).collect();
    let at = |port| lines.iter().find(|line| line.port == port);
    Ok(expected
        .iter()
        .all(|(replica, primary)| match (at(*replica), at(*primary)) {
            (Some(replica), Some(primary)) => replica.follows == primary.id,
            _ => false,
        }))
}

/// The parts that matter here of a line of `CLUSTER NODES`.
struct NodeLine<'a> {
    id: &'a str,
    port: u16,
    follows: &'a str,
}

impl<'a> NodeLine<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ');
        let (id, address, _flags, follows) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let port = address
            .split(['@', ','])
            .next()?
            .rsplit(':')
            .next()?
            .parse()
            .ok()?;
        Some(Self { id, port, follows })
    }
}
