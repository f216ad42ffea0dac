//! How messages become bytes: protobuf, with small buffers. A sidecar has thousands of streams that are idle most of the time,
//! and each keeps its buffer. Shell. Decides nothing.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::BufferSettings;
use tonic_prost::ProstCodec;

/// The size of a new buffer for messages that come, in bytes; it grows with a larger message.
const RECEIVED: usize = 1024;
/// The same for messages that are sent. The stream of an idle instance only has the ends of its lease, of some twenty bytes.
const SENT: usize = 256;
/// The size in bytes from which on a stream sends what it has: tonic's default.
const SEND_FROM: usize = 32 * 1024;

/// The codec of all methods.
#[derive(Debug, Clone)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as tonic::codec::Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as tonic::codec::Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(SENT, SEND_FROM))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(RECEIVED, SEND_FROM))
    }
}
