//! The body of an answer while it is on its way.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http_body::{Body, Frame, SizeHint};
use prometheus_client::metrics::gauge::Gauge;

use super::connection::InFlight;

pin_project_lite::pin_project! {
    /// A body that counts its request as in flight until it is complete or dropped, and knows whose turn it is: it is asked
    /// for more only when the client has room for it.
    #[derive(Debug)]
    pub(super) struct Tracked<B> {
        #[pin]
        body: B,
        request: Request,
    }
}

/// The two counts a request takes part in: its connection's and the process's.
#[derive(Debug)]
pub(super) struct Request {
    connection: InFlight,
    in_flight: Gauge,
}

impl Request {
    pub(super) fn new(connection: InFlight, in_flight: Gauge) -> Self {
        in_flight.inc();
        Self {
            connection,
            in_flight,
        }
    }

    /// Something has begun, or the client has taken something.
    pub(super) fn steps(&self) {
        self.connection.steps();
    }

    /// Whether it is our turn, and not the client's.
    pub(super) fn works(&mut self, works: bool) {
        self.connection.works(works);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.in_flight.dec();
    }
}

impl<B> Tracked<B> {
    /// The body of an answer whose head is there.
    pub(super) fn new(body: B, mut request: Request) -> Self {
        request.works(false);
        Self { body, request }
    }
}

impl<B: Body> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        this.request.steps();
        let polled = this.body.poll_frame(context);
        this.request.works(polled.is_pending());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
