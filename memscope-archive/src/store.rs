//! Where the archive lies: a directory, or an object store.

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt as _, PutPayload, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL is none that is known.
    #[error(
        "{url:?} is no place for an archive — write file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
    )]
    Url {
        /// What was given.
        url: String,
    },
    /// There is a secret in the URL.
    #[error(
        "the URL of the archive has a user, a password or a query in it, which others can read — give credentials by the environment"
    )]
    Secret,
    /// The directory is not there.
    #[error("{path} is no directory that can be used")]
    Directory {
        /// The directory.
        path: String,
        /// What the system says.
        source: object_store::Error,
    },
    /// The store's settings are wrong.
    #[error("the store {url} cannot be used with these settings")]
    Settings {
        /// The URL.
        url: String,
        /// What is wrong.
        source: object_store::Error,
    },
}

/// A store, and the prefix of all names in it.
#[derive(Clone, Debug)]
pub struct Store {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    /// The URL, which has no secret in it.
    pub url: String,
}

/// How often and for how long a request is tried before the spool waits: briefly, because the spool tries again by itself.
fn retry() -> RetryConfig {
    RetryConfig {
        max_retries: 2,
        retry_timeout: Duration::from_secs(20),
        ..RetryConfig::default()
    }
}

fn client() -> ClientOptions {
    ClientOptions::new()
        .with_connect_timeout(Duration::from_secs(10))
        .with_timeout(Duration::from_secs(120))
}

impl Store {
    /// The store at a URL. Credentials come from the environment, or from what the machine is.
    ///
    /// # Errors
    /// If it is no URL of a store, or the store cannot be used with what the environment says.
    pub fn open(url: &str) -> Result<Store, StoreError> {
        let unknown = || StoreError::Url {
            url: url.to_owned(),
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(unknown)?;
        if rest.contains(['@', '?', '#']) {
            return Err(StoreError::Secret);
        }
        let settings = |source| StoreError::Settings {
            url: url.to_owned(),
            source,
        };
        if scheme == "file" {
            if !rest.starts_with('/') {
                return Err(unknown());
            }
            let store = LocalFileSystem::new_with_prefix(rest);
            let store = store.map_err(|source| StoreError::Directory {
                path: rest.to_owned(),
                source,
            })?;
            return Ok(Store {
                // What is renamed into its place must be on the disk, because the spool's copy is removed then.
                store: Arc::new(store.with_fsync(true)),
                prefix: String::new(),
                url: url.to_owned(),
            });
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(unknown());
        }
        let store: Arc<dyn ObjectStore> = match scheme {
            "s3" => Arc::new(
                AmazonS3Builder::from_env()
                    .with_bucket_name(bucket)
                    .with_retry(retry())
                    .with_client_options(client().with_allow_http(allow_http()))
                    .build()
                    .map_err(settings)?,
            ),
            "gs" => Arc::new(
                GoogleCloudStorageBuilder::from_env()
                    .with_bucket_name(bucket)
                    .with_retry(retry())
                    .with_client_options(client())
                    .build()
                    .map_err(settings)?,
            ),
            "az" => Arc::new(
                MicrosoftAzureBuilder::from_env()
                    .with_container_name(bucket)
                    .with_retry(retry())
                    .with_client_options(client().with_allow_http(allow_http()))
                    .build()
                    .map_err(settings)?,
            ),
            _ => return Err(unknown()),
        };
        Ok(Store {
            store,
            prefix: prefix.trim_matches('/').to_owned(),
            url: url.to_owned(),
        })
    }

    fn path(&self, object: &str) -> Result<Path, object_store::Error> {
        let whole = match self.prefix.is_empty() {
            true => object.to_owned(),
            false => format!("{}/{object}", self.prefix),
        };
        Ok(Path::parse(whole)?)
    }

    /// Writes an object, whole or not at all. One that is there already is replaced, by the same bytes.
    ///
    /// # Errors
    /// If the store does not take it, or its answer does not come.
    pub async fn put(&self, object: &str, content: Vec<u8>) -> Result<(), object_store::Error> {
        let path = self.path(object)?;
        self.store.put(&path, PutPayload::from(content)).await?;
        Ok(())
    }

    /// Writes and removes a small object, to see whether that works.
    ///
    /// # Errors
    /// If it does not.
    pub async fn try_it(&self, name: &str) -> Result<(), object_store::Error> {
        let object = format!(".memscope-check-{name}");
        self.put(&object, b"memscope-archive --check\n".to_vec())
            .await?;
        self.store.delete(&self.path(&object)?).await
    }
}

/// Whether the environment allows a store without TLS, as one on this machine. The builders' own reading of it is lost when other options of
/// connections are given.
fn allow_http() -> bool {
    ["AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP"]
        .iter()
        .any(|name| std::env::var(name).is_ok_and(|value| value == "true" || value == "1"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn places_that_are_none_are_refused_by_name() {
        for url in ["", "/srv", "http://x/y", "s3://", "file://srv", "s3:/x"] {
            let error = Store::open(url).unwrap_err();
            assert!(matches!(error, StoreError::Url { .. }), "{url}: {error}");
        }
        for url in ["s3://key:secret@bucket", "az://c/p?sig=abc"] {
            let error = Store::open(url).unwrap_err().to_string();
            assert!(
                !error.contains("secret") && !error.contains("abc"),
                "{error}"
            );
        }
        let error = Store::open("file:///nowhere/at/all").unwrap_err();
        assert!(matches!(error, StoreError::Directory { .. }));
    }
}
