//! A question to a server: [`get`].

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures::future::join;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// What a server answers to a GET.
pub fn get(url: &str) -> anyhow::Result<Bytes> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(answer(url));
    answer.with_context(|| format!("cannot ask {url}"))
}

async fn answer(url: &str) -> anyhow::Result<Bytes> {
    let url: Uri = url.parse()?;
    let authority = url.authority().context("no host")?.as_str();
    let stream = TcpStream::connect(authority).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(url.path()).header(HOST, authority);
    let request = request.body(Empty::<Bytes>::new())?;
    let asked = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        ensure!(status.is_success(), "status {status}");
        Ok(response.into_body().collect().await?.to_bytes())
    };
    join(asked, connection).await.0
}
