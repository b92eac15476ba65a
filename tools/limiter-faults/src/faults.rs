//! The faults, one family in each file.

mod clock;
mod cluster;
mod failover;
mod flapping;
mod keys;
mod layouts;
mod memory;
mod outages;
mod processes;
mod replies;
mod scripts;
mod sentinel;
mod soak;
mod takeover;

pub(crate) use processes::worker;

use crate::trial::Fault;

pub(crate) const FAULTS: &[Fault] = &[
    // The first, since it compares the memory of the process: other faults leave memory that the
    // allocator returns late.
    Fault {
        name: "soak",
        description: "a fault at random every few seconds",
        run: soak::soak,
    },
    Fault {
        name: "kill",
        description: "the server is killed under load and restarted empty",
        run: outages::kill,
    },
    Fault {
        name: "stop",
        description: "the server is stopped (SIGSTOP) and resumed",
        run: outages::stop,
    },
    Fault {
        name: "client-pause",
        description: "the server lets its clients wait (CLIENT PAUSE)",
        run: outages::client_pause,
    },
    Fault {
        name: "black-hole",
        description: "packets are dropped, and connections stay open",
        run: outages::black_hole,
    },
    Fault {
        name: "one-replica",
        description: "keys are used by one replica until an outage, and by all of them from then on",
        run: flapping::one_replica,
    },
    Fault {
        name: "flapping",
        description: "replies alternate between late and in time, then the server alternates between down and up",
        run: flapping::by_turns,
    },
    Fault {
        name: "cut-replies",
        description: "100 replies are cut after the calls have run",
        run: replies::cut,
    },
    Fault {
        name: "script-flush",
        description: "the server forgets its scripts every 5 ms",
        run: scripts::flush,
    },
    Fault {
        name: "busy-script",
        description: "a foreign script blocks the server until it is killed",
        run: scripts::busy,
    },
    Fault {
        name: "failover",
        description: "a replica takes over behind the same address, once in order and once after a crash",
        run: failover::behind_one_address,
    },
    Fault {
        name: "sentinel",
        description: "sentinels promote a replica, on command and after a crash",
        run: sentinel::through_sentinel,
    },
    Fault {
        name: "migration",
        description: "slots of a cluster move under load",
        run: cluster::migration,
    },
    Fault {
        name: "cluster-failover",
        description: "replicas of a cluster take over, on command and after a crash",
        run: takeover::in_a_cluster,
    },
    Fault {
        name: "node-stopped",
        description: "one node of a cluster stands still",
        run: cluster::node_stopped,
    },
    Fault {
        name: "oom",
        description: "the server is out of memory and evicts nothing",
        run: memory::noeviction,
    },
    Fault {
        name: "eviction",
        description: "the server is short of memory and evicts live limits",
        run: memory::eviction,
    },
    Fault {
        name: "clock",
        description: "the server's clock is put forward and back by an hour",
        run: clock::moved,
    },
    Fault {
        name: "layouts",
        description: "values of an older and of a newer version",
        run: layouts::of_other_versions,
    },
    Fault {
        name: "hostile-keys",
        description: "a caller invents keys by the million",
        run: keys::hostile,
    },
    Fault {
        name: "processes",
        description: "four processes decide without their server",
        run: processes::without_redis,
    },
];
