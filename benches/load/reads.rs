//! Get, lists and pages.

use std::time::Duration;

use bytes::Bytes;
use rand::seq::IndexedRandom as _;

use crate::{
    bare::Bare,
    client::Client,
    cluster::{Cluster, Name, all},
    latency::Latencies,
    options::Options,
    report::{Goal, NO_GOALS, Report, Unit, megabytes},
};

/// What kubectl asks for.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
/// What kubectl and client-go's reflector read at once.
const PAGE: usize = 500;
/// Lists under way at once, for the memory that they take.
const LISTS_AT_ONCE: usize = 16;

/// Answers of the server, for the ceiling to repeat.
pub(crate) struct Samples {
    object: Bytes,
    page: Bytes,
    list: Bytes,
    table: Bytes,
}

impl Samples {
    pub(crate) async fn take(cluster: &Cluster) -> anyhow::Result<Self> {
        let client = &cluster.client;
        let names = cluster.names().await?;
        let any = names.choose(&mut rand::rng());
        let any = any.ok_or_else(|| anyhow::anyhow!("there are no sandboxes"))?;
        Ok(Self {
            object: client.get(&any.path()).await?.body,
            page: client.get(&page_path()).await?.body,
            list: client.get(&all()).await?.body,
            table: client.get_as(&all(), TABLE).await?.body,
        })
    }

    /// The answers by the names that the ceiling serves them under.
    pub(crate) fn named(&self) -> [(&'static str, &Bytes); 4] {
        [
            ("object", &self.object),
            ("page", &self.page),
            ("list", &self.list),
            ("table", &self.table),
        ]
    }
}

pub(crate) async fn measure(
    cluster: &Cluster,
    ceiling: &Bare,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    gets(cluster, ceiling, options, report).await?;
    pages(cluster, ceiling, options, report).await?;
    let json = Kind {
        what: "list all, JSON",
        accept: "application/json",
        path: "/list",
    };
    let table = Kind {
        what: "list all, Table",
        accept: TABLE,
        path: "/table",
    };
    let as_json = lists(cluster, ceiling, &json, options.lists, report).await?;
    let as_table = lists(cluster, ceiling, &table, options.lists, report).await?;
    report
        .row("Table beside JSON, p50", as_table / as_json, Unit::Times)
        .goal(Goal::AtMost(1.0));
    memory_of_lists(cluster, report).await
}

async fn gets(
    cluster: &Cluster,
    ceiling: &Bare,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    eprintln!("{} gets", options.gets);
    let names = cluster.names().await?;
    let mut rng = rand::rng();
    let mut next = || names.choose(&mut rng).map(Name::path);
    // The first question of a user costs a review by kube-apiserver; the measurement is about the rest.
    for path in std::iter::repeat_with(&mut next).flatten().take(100) {
        cluster.client.get(&path).await?;
    }

    let (mut found, mut bytes) = (Latencies::default(), Latencies::default());
    let before = (cluster.server.cpu()?, ceiling.usage.cpu()?);
    for path in std::iter::repeat_with(&mut next)
        .flatten()
        .take(options.gets)
    {
        found.add(cluster.client.get(&path).await?.latency);
        // In turns, so that whatever else the machine does hits both.
        bytes.add(ceiling.client.get("/object").await?.latency);
    }
    let after = (cluster.server.cpu()?, ceiling.usage.cpu()?);
    report.latencies(
        "get, random name",
        &found,
        [Some(Goal::AtMost(0.15)), Some(Goal::AtMost(1.0))],
        Some(&bytes),
    );
    let each = |spent: Duration| spent.as_secs_f64() * 1e3 / options.gets as f64;
    report
        .row(
            "get, random name, CPU of the server",
            each(after.0 - before.0),
            Unit::Milliseconds,
        )
        .ceiling(each(after.1 - before.1));

    let mut absent = Latencies::default();
    for (turn, name) in names.iter().cycle().take(options.gets).enumerate() {
        let path = format!("{}/absent-{turn}", name.collection());
        absent.add(cluster.client.get_absent(&path).await?.latency);
    }
    report.latencies("get, absent name", &absent, NO_GOALS, None);
    Ok(())
}

/// The pages of a whole list, over and over, so that late pages count as much as the first.
async fn pages(
    cluster: &Cluster,
    ceiling: &Bare,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    eprintln!("{} pages", options.pages);
    let (mut pages, mut bytes) = (Latencies::default(), Latencies::default());
    let mut path = page_path();
    for _ in 0..options.pages {
        let page = cluster.client.get(&path).await?;
        pages.add(page.latency);
        bytes.add(ceiling.client.get("/page").await?.latency);
        path = next_page(&page.body)?;
    }
    let goals = [Some(Goal::AtMost(3.0)), None];
    report.latencies("page of 500, JSON", &pages, goals, Some(&bytes));
    Ok(())
}

fn page_path() -> String {
    format!("{}?limit={PAGE}", all())
}

/// Where the list goes on, or its beginning.
fn next_page(page: &[u8]) -> anyhow::Result<String> {
    let page: serde_json::Value = serde_json::from_slice(page)?;
    Ok(match page["metadata"]["continue"].as_str() {
        None | Some("") => page_path(),
        Some(token) => format!("{}&continue={token}", page_path()),
    })
}

/// A kind of list.
struct Kind {
    what: &'static str,
    accept: &'static str,
    /// Where the ceiling has its bytes.
    path: &'static str,
}

/// Seconds that a list takes, p50.
async fn lists(
    cluster: &Cluster,
    ceiling: &Bare,
    kind: &Kind,
    n_lists: usize,
    report: &mut Report,
) -> anyhow::Result<f64> {
    let Kind { what, accept, path } = kind;
    eprintln!("{n_lists} times {what}");
    let (mut lists, mut bytes) = (Latencies::default(), Latencies::default());
    let (mut spent, mut spent_on_bytes) = (Duration::ZERO, Duration::ZERO);
    let mut size = 0;
    for _ in 0..n_lists {
        let before = (cluster.server.cpu()?, ceiling.usage.cpu()?);
        let list = get_list(&cluster.client, &all(), accept).await?;
        lists.add(list.0);
        size = list.1;
        bytes.add(get_list(&ceiling.client, path, accept).await?.0);
        spent += cluster.server.cpu()? - before.0;
        spent_on_bytes += ceiling.usage.cpu()? - before.1;
    }
    report.latencies(what, &lists, NO_GOALS, Some(&bytes));
    let [own, of_bytes] = [&lists, &bytes].map(|it| it.percentile(50).as_secs_f64());
    report
        .row(
            &format!("{what}, speed beside the ceiling"),
            of_bytes / own,
            Unit::Times,
        )
        .goal(Goal::AtLeast(0.8));
    let n_lists = u32::try_from(n_lists)?;
    report
        .time(&format!("{what}, CPU of the server"), spent / n_lists)
        .ceiling((spent_on_bytes / n_lists).as_secs_f64() * 1e3);
    report.row(&format!("{what}, size"), megabytes(size), Unit::Megabytes);
    Ok(own)
}

/// What the server takes for lists while they are sent, beside what it had before.
async fn memory_of_lists(cluster: &Cluster, report: &mut Report) -> anyhow::Result<()> {
    for (at_once, goal) in [(1, 8.0), (LISTS_AT_ONCE, 64.0)] {
        let mut clients = Vec::new();
        for _ in 0..at_once {
            clients.push(cluster.connect().await?);
        }
        let before = cluster.server.memory()?.resident;
        cluster.server.forget_peak()?;
        let path = all();
        let lists = clients.iter().map(|client| client.skim(&path));
        futures::future::try_join_all(lists).await?;
        let more = cluster.server.memory()?.peak.saturating_sub(before);
        let what = format!("list all, JSON, {at_once} at once, more memory");
        report
            .row(&what, megabytes(more), Unit::Megabytes)
            .goal(Goal::AtMost(goal));
    }
    Ok(())
}

async fn get_list(client: &Client, path: &str, accept: &str) -> anyhow::Result<(Duration, u64)> {
    let list = client.get_as(path, accept).await?;
    Ok((list.latency, u64::try_from(list.body.len())?))
}
