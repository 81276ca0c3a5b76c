//! Types that hold a part of a kind's objects, for watches that need no more.

/// Lets `$part`, a struct with the field `metadata`, be read and watched as the cluster-scoped kind `$whole`.
macro_rules! partial {
    ($part:ty, of $whole:ty) => {
        impl k8s_openapi::Resource for $part {
            const API_VERSION: &'static str = <$whole as k8s_openapi::Resource>::API_VERSION;
            const GROUP: &'static str = <$whole as k8s_openapi::Resource>::GROUP;
            const KIND: &'static str = <$whole as k8s_openapi::Resource>::KIND;
            const VERSION: &'static str = <$whole as k8s_openapi::Resource>::VERSION;
            const URL_PATH_SEGMENT: &'static str =
                <$whole as k8s_openapi::Resource>::URL_PATH_SEGMENT;
            type Scope = k8s_openapi::ClusterResourceScope;
        }

        impl k8s_openapi::Metadata for $part {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use partial;
