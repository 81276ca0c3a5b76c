//! What is between the server and a node, or the agent beside it: a TCP proxy that breaks on request.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Mutex,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpSocket, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// How a connection behaves, the open ones as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Open,
    /// New connections are refused, and the open ones are broken.
    Cut,
    /// Connections are taken and bytes wait, in both directions, until the line is another.
    Held,
    /// Each piece comes later by so much.
    Late {
        millis: u64,
    },
    /// The next request whose path contains this comes so much later, also when its client has hung up meanwhile; all others
    /// come at once.
    Stuck {
        path: &'static str,
        millis: u64,
    },
    /// The answer to the next request whose line contains this comes so much later.
    Slow {
        path: &'static str,
        millis: u64,
    },
    /// The answer to a request whose path contains this is lost with its connection, after the node got the request. `once`: and
    /// then the line is open.
    Lossy {
        path: &'static str,
        once: bool,
    },
}

/// A proxy in front of a node. Dropped, it breaks all connections.
pub(super) struct Proxy {
    line_tx: watch::Sender<Line>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Takes connections at `at`, for who listens at port `to` of this machine.
    pub(super) fn start(at: SocketAddr, to: u16) -> io::Result<Self> {
        let listener = listen(at)?;
        let line_tx = watch::Sender::new(Line::Open);
        let task = tokio::spawn(serve(line_tx.clone(), listener, at, to));
        Ok(Self { line_tx, task })
    }

    pub(super) fn set(&self, line: Line) {
        self.line_tx.send_replace(line);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(1024)
}

async fn serve(line_tx: watch::Sender<Line>, listener: TcpListener, at: SocketAddr, to: u16) {
    let (mut listener, mut line_rx) = (Some(listener), line_tx.subscribe());
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let is_cut = *line_rx.borrow_and_update() == Line::Cut;
        match (&listener, is_cut) {
            (_, true) => listener = None,
            // Somebody may have the port for an outgoing connection at this moment.
            (None, false) => listener = listen(at).ok(),
            _ => {}
        }
        let Some(open) = &listener else {
            let _ = tokio::time::timeout(Duration::from_millis(50), line_rx.changed()).await;
            continue;
        };
        tokio::select! {
            _ = line_rx.changed() => {}
            taken = open.accept() => if let Ok((client, _)) = taken {
                connections.spawn(connection(client, to, line_tx.clone()));
            }
        }
    }
}

async fn connection(client: TcpStream, to: u16, line_tx: watch::Sender<Line>) {
    let Ok(node) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), node.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_node, to_node) = node.into_split();
    let pump = Pump {
        asked: Mutex::default(),
        line_tx,
    };
    let mut line_rx = pump.line_tx.subscribe();
    // Whichever ends first, both ends of the connection go.
    tokio::select! {
        _ = pump.requests(from_client, to_node) => {}
        _ = pump.answers(from_node, to_client) => {}
        _ = line_rx.wait_for(|line| *line == Line::Cut) => {}
    }
}

struct Pump {
    /// The line of the latest request.
    asked: Mutex<String>,
    line_tx: watch::Sender<Line>,
}

impl Pump {
    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
        let mut piece = vec![0; 16 << 10];
        loop {
            let n = from.read(&mut piece).await?;
            if n == 0 {
                return Ok(());
            }
            // The client sends a request in one piece, or its head in the first.
            let text = String::from_utf8_lossy(&piece[..n]);
            if let Some(line) = text.lines().next().filter(|line| line.contains(" HTTP/1")) {
                *self.asked.lock().unwrap() = line.to_owned();
            }
            self.wait().await;
            self.stick(false).await;
            to.write_all(&piece[..n]).await?;
        }
    }

    async fn answers(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
        let mut piece = vec![0; 16 << 10];
        loop {
            let n = from.read(&mut piece).await?;
            if n == 0 || self.is_lost() {
                return Ok(());
            }
            self.stick(true).await;
            self.wait().await;
            to.write_all(&piece[..n]).await?;
        }
    }

    async fn wait(&self) {
        let mut line_rx = self.line_tx.subscribe();
        let line = *line_rx.borrow_and_update();
        if let Line::Late { millis } = line {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
        let _ = line_rx.wait_for(|line| *line != Line::Held).await;
    }

    /// Holds up the latest request, or its answer, if it is the one.
    async fn stick(&self, is_answer: bool) {
        let mut stuck = 0;
        let asked = self.asked.lock().unwrap().clone();
        self.line_tx.send_if_modified(|line| match *line {
            Line::Stuck { path, millis } if !is_answer && asked.contains(path) => {
                (stuck, *line) = (millis, Line::Open);
                true
            }
            Line::Slow { path, millis } if is_answer && asked.contains(path) => {
                (stuck, *line) = (millis, Line::Open);
                true
            }
            _ => false,
        });
        tokio::time::sleep(Duration::from_millis(stuck)).await;
    }

    /// Whether the answer to the latest request is lost.
    fn is_lost(&self) -> bool {
        let mut lost = false;
        let asked = self.asked.lock().unwrap().clone();
        self.line_tx.send_if_modified(|line| match *line {
            Line::Lossy { path, once } if asked.contains(path) => {
                lost = true;
                if once {
                    *line = Line::Open;
                }
                once
            }
            _ => false,
        });
        lost
    }
}
