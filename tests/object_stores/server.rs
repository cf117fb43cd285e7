//! What the tests' S3 server does of what S3 does, as `object_store` sees it.

use std::sync::Arc;

use futures::future::join_all;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion};
use tokio::runtime::Runtime;

use crate::s3_server::{ACCESS_KEY, BUCKET, S3Server, SECRET_KEY};
use crate::store_proxy::{Accident, StoreProxy};

fn client(address: std::net::SocketAddr) -> AmazonS3 {
    AmazonS3Builder::new()
        .with_bucket_name(BUCKET)
        .with_endpoint(format!("http://{address}"))
        .with_access_key_id(ACCESS_KEY)
        .with_secret_access_key(SECRET_KEY)
        .with_allow_http(true)
        .build()
        .unwrap()
}

#[test]
fn a_conditional_put_has_one_winner() {
    let server = S3Server::start();
    let store = Arc::new(client(server.address()));
    let path = Path::from("lock");
    let racers = (0..32).map(|racer: u8| {
        let (store, path) = (Arc::clone(&store), path.clone());
        async move {
            let put = store.put_opts(&path, PutPayload::from(vec![racer]), PutMode::Create.into());
            put.await.map(|_| racer)
        }
    });
    let ended = Runtime::new().unwrap().block_on(join_all(racers));
    let (won, lost): (Vec<_>, Vec<_>) = ended.into_iter().partition(Result::is_ok);
    let winner = won.into_iter().next().unwrap().unwrap();
    assert_eq!(lost.len(), 31);
    for error in lost {
        assert!(
            matches!(error, Err(Error::AlreadyExists { .. })),
            "{error:?}"
        );
    }
    assert_eq!(server.objects()["lock"].as_ref(), [winner]);
    assert_eq!(server.history().len(), 1);
}

#[test]
fn an_update_needs_the_version_that_it_has_seen() {
    let server = S3Server::start();
    let store = client(server.address());
    let path = Path::from("lock");
    Runtime::new().unwrap().block_on(async {
        let first = store.put(&path, "1".into()).await.unwrap();
        let update = |seen: UpdateVersion, content: &'static str| {
            store.put_opts(&path, content.into(), PutMode::Update(seen).into())
        };
        update(first.clone().into(), "2").await.unwrap();
        let late = update(first.clone().into(), "3").await;
        assert!(matches!(late, Err(Error::Precondition { .. })), "{late:?}");
        store.delete(&path).await.unwrap();
        let gone = update(first.into(), "4").await;
        assert!(matches!(gone, Err(Error::Precondition { .. })), "{gone:?}");
    });
    assert!(server.objects().is_empty());
}

// Whoever makes a lock this way must look whose it is before it gives up.
#[test]
fn a_conditional_put_whose_answer_is_lost_finds_its_own_object() {
    let server = S3Server::start();
    let proxy = StoreProxy::start(
        server.address(),
        [Accident::AnswerLost.to("PUT", "lock", "")],
    );
    let store = client(proxy.address());
    let path = Path::from("lock");
    let put = store.put_opts(&path, "mine".into(), PutMode::Create.into());
    let put = Runtime::new().unwrap().block_on(put);
    assert!(matches!(put, Err(Error::AlreadyExists { .. })), "{put:?}");
    assert_eq!(server.objects()["lock"].as_ref(), b"mine");
}
