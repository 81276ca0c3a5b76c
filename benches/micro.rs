//! The inner loops, each alone: what a get, a page, a change, a publication and an encoding cost without a network.
//!
//! `hack/bench micro [FILTER]` runs them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use divan::{Bencher, black_box, counter::ItemsCount};
use rand::Rng as _;
use sandbox_apiserver::{
    api::{NodeName, PoolKey},
    apiserver::Resource as _,
    fleet::{Fleet, HealthLimits, Now, Phase, Pool, Report, Row, Sandbox},
    gateway::{Gateway, GatewayMetrics, GatewayOptions},
    inventory::{Inventory, InventoryMetrics, Options},
    meta::{LabelSelector, ResourceVersion, UnixTime},
    resources::{Sandboxes, sandbox_definition},
    sandboxd::{Client, ClientOptions, TokenSource},
    store::{Change, Key, Limits, Scope},
    telemetry::Metrics,
};
use tokio_util::sync::CancellationToken;

const SIZES: [usize; 3] = [10_000, 100_000, 1_000_000];
const ROWS_A_NODE: usize = 2_500;
const PAGE: usize = 500;

fn main() {
    divan::main();
}

#[divan::bench(args = SIZES)]
fn store_get(bencher: Bencher<'_, '_>, n_sandboxes: usize) {
    let fleet = mk_fleet(n_sandboxes);
    let random = || name(rand::rng().random_range(0..n_sandboxes));
    bencher
        .with_inputs(random)
        .bench_refs(|name| fleet.store().get("default", name));
}

#[divan::bench(args = SIZES)]
fn store_page_of_500(bencher: Bencher<'_, '_>, n_sandboxes: usize) {
    let fleet = mk_fleet(n_sandboxes);
    let store = fleet.store();
    bencher
        .counter(ItemsCount::new(PAGE))
        .bench(|| store.page(&Scope::All, None, store.head(), PAGE));
}

/// What a page asks for its `remainingItemCount`.
#[divan::bench(args = SIZES)]
fn store_count_behind_the_first(bencher: Bencher<'_, '_>, n_sandboxes: usize) {
    let fleet = mk_fleet(n_sandboxes);
    let store = fleet.store();
    let first = Key::new("default", name(0));
    bencher.bench(|| store.count_after(&Scope::All, &first, store.head()));
}

#[divan::bench(args = SIZES)]
fn store_commit(bencher: Bencher<'_, '_>, n_sandboxes: usize) {
    let fleet = mk_fleet(n_sandboxes);
    let changed = || {
        let name = name(rand::rng().random_range(0..n_sandboxes));
        let known = fleet.store().get("default", &name);
        known.expect("every name is there").value.clone()
    };
    bencher
        .with_inputs(changed)
        .bench_values(|sandbox| fleet.store().commit([Change::Put(sandbox)]));
}

#[divan::bench]
fn publish_unchanged(bencher: Bencher<'_, '_>) {
    let fleet = mk_fleet(ROWS_A_NODE);
    let (node, report) = (node(0), report(0, ROWS_A_NODE));
    bencher
        .counter(ItemsCount::new(ROWS_A_NODE))
        .bench(|| fleet.publish(&node, black_box(&report), true, true, Now::read()));
}

#[divan::bench]
fn encode_sandbox(bencher: Bencher<'_, '_>) {
    let (sandbox, version) = any_sandbox();
    with_sandboxes(|sandboxes| {
        let mut out = Vec::with_capacity(4_096);
        bencher.bench_local(|| {
            out.clear();
            sandboxes.encode(black_box(&sandbox), version, 0, &mut out);
        });
    });
}

#[divan::bench]
fn encode_cells(bencher: Bencher<'_, '_>) {
    let (sandbox, _) = any_sandbox();
    with_sandboxes(|sandboxes| {
        let (mut out, now) = (Vec::with_capacity(4_096), UnixTime::now());
        bencher.bench_local(|| {
            out.clear();
            sandboxes.encode_cells(black_box(&sandbox), 0, now, &mut out);
        });
    });
}

#[divan::bench(args = ["sandbox.cocoonstack.io/phase=Running", "app=web", "app in (web, db), !legacy"])]
fn match_selector(bencher: Bencher<'_, '_>, selector: &str) {
    let (sandbox, _) = any_sandbox();
    let selector: LabelSelector = selector.parse().expect("the selector is well-formed");
    with_sandboxes(|sandboxes| {
        bencher.bench_local(|| selector.matches(|key| sandboxes.label(black_box(&sandbox), key)));
    });
}

/// A fleet as the nodes' publications make it.
fn mk_fleet(n_sandboxes: usize) -> Arc<Fleet> {
    let start = ResourceVersion::first_of_epoch(1).expect("epoch 1 exists");
    let fleet = Fleet::new(start, Limits::default(), HealthLimits::default());
    let now = Now::read();
    for first in (0..n_sandboxes).step_by(ROWS_A_NODE) {
        let n_rows = ROWS_A_NODE.min(n_sandboxes - first);
        fleet.publish(
            &node(first / ROWS_A_NODE),
            &report(first, n_rows),
            true,
            true,
            now,
        );
    }
    assert_eq!(fleet.store().count(&Scope::All), n_sandboxes);
    Arc::new(fleet)
}

fn node(number: usize) -> NodeName {
    format!("node-{number:04}").as_str().into()
}

fn name(number: usize) -> String {
    format!("sb-{number:07}")
}

fn report(first: usize, n_rows: usize) -> Report {
    let now = UnixTime::now();
    let pool = PoolKey {
        template: "python:3.12".into(),
        net: PoolKey::DEFAULT_NET.into(),
        size: PoolKey::DEFAULT_SIZE.into(),
    };
    let row = |number: usize| Row {
        claim: format!("sb_{number:016x}").as_str().into(),
        claim_ref: format!("default/{}", name(number)).into(),
        phase: Phase::Running,
        deadline: Some(now.after(Duration::from_secs(86_400))),
        claimed_at: Some(now),
        pool: Some(pool.clone()),
        address: "10.1.2.3:8080".into(),
        from_checkpoint: None,
        metadata: BTreeMap::new(),
    };
    Report {
        address: Some("10.1.2.3:7777".parse().expect("the address is well-formed")),
        rows: (first..first + n_rows).map(row).collect(),
        pools: Some(vec![Pool {
            key: pool.clone(),
            warm: 100,
            target: 100,
        }]),
        complete: true,
        published_since: now,
    }
}

fn any_sandbox() -> (Sandbox, ResourceVersion) {
    let stored = mk_fleet(1).store().get("default", &name(0));
    let stored = stored.expect("the fleet has one sandbox");
    (stored.value.clone(), stored.version)
}

/// The resource, in a runtime, since its gateway has tasks.
fn with_sandboxes(measure: impl FnOnce(&Sandboxes)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be built");
    let _entered = runtime.enter();
    let (fleet, metrics) = (mk_fleet(0), Metrics::new());
    let options = ClientOptions {
        token: TokenSource::Absent,
        ca_file: None,
    };
    let client = Client::new(options).expect("a client without certificates can be built");
    let inventory = Inventory::new(
        fleet.clone(),
        client.clone(),
        Options::default(),
        InventoryMetrics::register(&metrics),
    );
    let gateway = Gateway::start(
        fleet.clone(),
        inventory,
        client,
        GatewayOptions::default(),
        GatewayMetrics::register(&metrics),
        CancellationToken::new(),
    );
    let definition = sandbox_definition().expect("the definition is well-formed");
    measure(&Sandboxes::new(definition, fleet, gateway));
}
