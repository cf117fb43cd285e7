use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{TryStreamExt, stream};
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use super::s3_server::{BUCKET, Change};

/// The least that S3 takes as a piece of an upload that is not the last.
const LEAST_PIECE: usize = 5 * 1024 * 1024;

/// What the bucket holds.
#[derive(Default)]
pub struct State {
    pub objects: BTreeMap<String, Stored>,
    pub uploads: BTreeMap<String, Upload>,
    pub history: Vec<Change>,
    pub pieces: usize,
    /// Objects in a page of a listing beyond the first.
    pub further: usize,
    /// Ids that were given out, for entity tags and for uploads.
    ids: u64,
}

pub struct Stored {
    pub content: Bytes,
    etag: ETag,
    changed: SystemTime,
}

pub struct Upload {
    pub key: String,
    pub pieces: BTreeMap<i32, (ETag, Bytes)>,
}

impl State {
    fn id(&mut self) -> String {
        self.ids += 1;
        format!("{:032x}", self.ids)
    }

    /// Publishes an object if the conditions hold.
    pub fn publish(
        &mut self,
        key: String,
        content: Bytes,
        none_match: Option<ETagCondition>,
        matches: Option<ETagCondition>,
    ) -> S3Result<ETag> {
        let existing = self.objects.get(&key).map(|object| &object.etag);
        if none_match.is_some() && existing.is_some() {
            return Err(s3_error!(PreconditionFailed));
        }
        match (matches, existing) {
            (Some(_), None) => return Err(s3_error!(NoSuchKey)),
            (Some(ETagCondition::ETag(wanted)), Some(existing)) if wanted != *existing => {
                return Err(s3_error!(PreconditionFailed));
            }
            _ => {}
        }
        let etag = ETag::Strong(self.id());
        self.history.push(Change::Put(key.clone(), content.clone()));
        let stored = Stored {
            content,
            etag: etag.clone(),
            changed: SystemTime::now(),
        };
        self.objects.insert(key, stored);
        Ok(etag)
    }

    pub fn delete(&mut self, key: &str) {
        if self.objects.remove(key).is_some() {
            self.history.push(Change::Deleted(key.to_owned()));
        }
    }

    fn upload(&mut self, id: &str, key: &str) -> S3Result<&mut Upload> {
        let upload = self.uploads.get_mut(id);
        upload
            .filter(|upload| upload.key == key)
            .ok_or_else(|| s3_error!(NoSuchUpload))
    }
}

/// The requests of S3 that stores of runs make, on a [`State`].
pub struct S3Backend(Arc<Mutex<State>>);

impl S3Backend {
    pub fn new(state: Arc<Mutex<State>>) -> Self {
        Self(state)
    }

    fn state(&self, bucket: &str) -> S3Result<MutexGuard<'_, State>> {
        if bucket != BUCKET {
            return Err(s3_error!(NoSuchBucket));
        }
        Ok(self.0.lock().unwrap())
    }
}

/// A body whole, or an error where the client left in the middle of it.
async fn whole(body: Option<StreamingBlob>, length: Option<i64>) -> S3Result<Bytes> {
    let mut bytes = BytesMut::new();
    if let Some(mut body) = body {
        while let Some(piece) = body
            .try_next()
            .await
            .map_err(|_| s3_error!(IncompleteBody))?
        {
            bytes.extend_from_slice(&piece);
        }
    }
    match length {
        Some(length) if length != i64::try_from(bytes.len()).unwrap() => {
            Err(s3_error!(IncompleteBody))
        }
        _ => Ok(bytes.freeze()),
    }
}

fn blob(content: Bytes) -> StreamingBlob {
    StreamingBlob::wrap(stream::iter([Ok::<_, std::io::Error>(content)]))
}

fn length(content: &Bytes) -> Option<i64> {
    i64::try_from(content.len()).ok()
}

#[async_trait]
impl S3 for S3Backend {
    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let wanted = request.input;
        let state = self.state(&wanted.bucket)?;
        let object = state.objects.get(&wanted.key);
        let object = object.ok_or_else(|| s3_error!(NoSuchKey))?;
        let size = object.content.len();
        let (content, content_range) = match wanted.range {
            None => (object.content.clone(), None),
            Some(range) => {
                let range = range.check(size as u64)?;
                let shown = format!("bytes {}-{}/{size}", range.start, range.end - 1);
                let (start, end) = (range.start as usize, range.end as usize);
                (object.content.slice(start..end), Some(shown))
            }
        };
        Ok(S3Response::new(GetObjectOutput {
            content_length: length(&content),
            content_range,
            body: Some(blob(content)),
            e_tag: Some(object.etag.clone()),
            last_modified: Some(object.changed.into()),
            ..Default::default()
        }))
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let state = self.state(&request.input.bucket)?;
        let object = state.objects.get(&request.input.key);
        let object = object.ok_or_else(|| s3_error!(NoSuchKey))?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: length(&object.content),
            e_tag: Some(object.etag.clone()),
            last_modified: Some(object.changed.into()),
            ..Default::default()
        }))
    }

    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let put = request.input;
        let content = whole(put.body, put.content_length).await?;
        let mut state = self.state(&put.bucket)?;
        let etag = state.publish(put.key, content, put.if_none_match, put.if_match)?;
        Ok(S3Response::new(PutObjectOutput {
            e_tag: Some(etag),
            ..Default::default()
        }))
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let copy = request.input;
        let CopySource::Bucket { key: source, .. } = copy.copy_source else {
            return Err(s3_error!(NotImplemented));
        };
        let mut state = self.state(&copy.bucket)?;
        let object = state.objects.get(&*source);
        let content = object.ok_or_else(|| s3_error!(NoSuchKey))?.content.clone();
        let etag = state.publish(copy.key, content, None, None)?;
        let result = CopyObjectResult {
            e_tag: Some(etag),
            ..Default::default()
        };
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(result),
            ..Default::default()
        }))
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.state(&request.input.bucket)?
            .delete(&request.input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let mut state = self.state(&request.input.bucket)?;
        let mut deleted = Vec::new();
        for object in request.input.delete.objects {
            state.delete(&object.key);
            deleted.push(DeletedObject {
                key: Some(object.key),
                ..Default::default()
            });
        }
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted: Some(deleted),
            ..Default::default()
        }))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let wanted = request.input;
        let state = self.state(&wanted.bucket)?;
        let prefix = wanted.prefix.unwrap_or_default();
        let after = wanted.continuation_token.or(wanted.start_after);
        let mut contents = Vec::new();
        let mut folders: Vec<CommonPrefix> = Vec::new();
        let mut last = None;
        let mut truncated = false;
        for (key, object) in &state.objects {
            let seen = |after: &String| {
                key <= after || (after.ends_with('/') && key.starts_with(after.as_str()))
            };
            if !key.starts_with(&prefix) || after.as_ref().is_some_and(seen) {
                continue;
            }
            let folder = wanted.delimiter.as_ref().and_then(|delimiter| {
                let end = key[prefix.len()..].find(delimiter.as_str())?;
                Some(key[..prefix.len() + end + delimiter.len()].to_owned())
            });
            if folder.is_some() && folder == last {
                continue;
            }
            if contents.len() + folders.len() > state.further {
                truncated = true;
                break;
            }
            last = Some(folder.clone().unwrap_or_else(|| key.clone()));
            match folder {
                Some(folder) => folders.push(CommonPrefix {
                    prefix: Some(folder),
                }),
                None => contents.push(Object {
                    key: Some(key.clone()),
                    e_tag: Some(object.etag.clone()),
                    last_modified: Some(object.changed.into()),
                    size: length(&object.content),
                    ..Default::default()
                }),
            }
        }
        Ok(S3Response::new(ListObjectsV2Output {
            key_count: i32::try_from(contents.len() + folders.len()).ok(),
            name: Some(wanted.bucket),
            prefix: Some(prefix),
            contents: Some(contents),
            common_prefixes: Some(folders),
            is_truncated: Some(truncated),
            next_continuation_token: last.filter(|_| truncated),
            ..Default::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let wanted = request.input;
        let mut state = self.state(&wanted.bucket)?;
        let id = state.id();
        let upload = Upload {
            key: wanted.key.clone(),
            pieces: BTreeMap::new(),
        };
        state.uploads.insert(id.clone(), upload);
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(wanted.bucket),
            key: Some(wanted.key),
            upload_id: Some(id),
            ..Default::default()
        }))
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let piece = request.input;
        let content = whole(piece.body, piece.content_length).await?;
        let mut state = self.state(&piece.bucket)?;
        let etag = ETag::Strong(state.id());
        let upload = state.upload(&piece.upload_id, &piece.key)?;
        upload
            .pieces
            .insert(piece.part_number, (etag.clone(), content));
        state.pieces += 1;
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(etag),
            ..Default::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let wanted = request.input;
        let mut state = self.state(&wanted.bucket)?;
        let upload = state.upload(&wanted.upload_id, &wanted.key)?;
        let named = wanted.multipart_upload.and_then(|upload| upload.parts);
        let named = named.unwrap_or_default();
        let mut content = BytesMut::new();
        for (index, part) in named.iter().enumerate() {
            let number = part.part_number.ok_or_else(|| s3_error!(InvalidPart))?;
            let stored = upload.pieces.get(&number);
            let (etag, piece) = stored.ok_or_else(|| s3_error!(InvalidPart))?;
            if part.e_tag.as_ref() != Some(etag) {
                return Err(s3_error!(InvalidPart));
            }
            if piece.len() < LEAST_PIECE && index + 1 < named.len() {
                return Err(s3_error!(EntityTooSmall));
            }
            content.extend_from_slice(piece);
        }
        let etag = state.publish(
            wanted.key.clone(),
            content.freeze(),
            wanted.if_none_match,
            wanted.if_match,
        )?;
        // Completed once, it is not known any more.
        state.uploads.remove(&wanted.upload_id);
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            bucket: Some(wanted.bucket),
            key: Some(wanted.key),
            e_tag: Some(etag),
            ..Default::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let wanted = request.input;
        let mut state = self.state(&wanted.bucket)?;
        state.upload(&wanted.upload_id, &wanted.key)?;
        state.uploads.remove(&wanted.upload_id);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let wanted = request.input;
        let state = self.state(&wanted.bucket)?;
        let prefix = wanted.prefix.unwrap_or_default();
        let uploads = state.uploads.iter();
        let uploads = uploads.filter(|(_, upload)| upload.key.starts_with(&prefix));
        let uploads = uploads.map(|(id, upload)| MultipartUpload {
            key: Some(upload.key.clone()),
            upload_id: Some(id.clone()),
            ..Default::default()
        });
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(wanted.bucket),
            uploads: Some(uploads.collect()),
            is_truncated: Some(false),
            ..Default::default()
        }))
    }
}
