//! The workload file (bench/peers/workload.md), hashed into token blocks.

use dynamo_tokens::{TokenBlock, TokenBlockSequence};
use kvbm_logical::{KvbmSequenceHashProvider, SequenceHash};
use std::ops::Range;

const MAGIC: &[u8; 4] = b"ASHW";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
/// The seed of blocks without LoRA and without tenant salt.
const SALT: u64 = 1337;

pub struct Workload {
    pub block_size: usize,
    pub chain_length: usize,
    pub pool: usize,
    /// The blocks of each chain, and their hashes.
    pub chains: Vec<Vec<TokenBlock>>,
    pub hashes: Vec<Vec<SequenceHash>>,
}

impl Workload {
    pub fn read(path: &str) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|e| format!("cannot read {path}: {e}"))?;
        if bytes.len() < HEADER_BYTES || &bytes[0..4] != MAGIC {
            return Err(format!("{path} is not a workload file"));
        }
        let words: Vec<u32> =
            bytes[4..].chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
        let &[version, block_size, chain_length, chains, pool] = &words[0..5] else { unreachable!() };
        if version != VERSION {
            return Err(format!("{path} has version {version}, this program reads {VERSION}"));
        }
        let [block_size, chain_length, chains, pool] =
            [block_size, chain_length, chains, pool].map(|v| v as usize);
        let tokens = &words[5..];
        if bytes.len() % 4 != 0 || tokens.len() != chains * chain_length * block_size {
            return Err(format!(
                "{path} holds {} tokens, its header says {chains} x {chain_length} x {block_size}",
                tokens.len()
            ));
        }
        if chain_length == 0
            || block_size == 0
            || pool == 0
            || pool % chain_length != 0
            || chains * chain_length < 2 * pool
        {
            return Err(format!(
                "{path}: pool {pool} must be a multiple of chain length {chain_length} and at most half \
                 of all blocks"
            ));
        }

        let chains: Vec<Vec<TokenBlock>> = tokens
            .chunks_exact(chain_length * block_size)
            .map(|chain| TokenBlockSequence::from_slice(chain, block_size as u32, Some(SALT)).into_parts().0)
            .collect();
        let hashes =
            chains.iter().map(|chain| chain.iter().map(TokenBlock::kvbm_sequence_hash).collect()).collect();
        Ok(Self { block_size, chain_length, pool, chains, hashes })
    }

    /// How many chains the pool holds.
    pub fn chains_in_pool(&self) -> usize {
        self.pool / self.chain_length
    }
    pub fn resident(&self) -> Range<usize> {
        0..(self.chains_in_pool() * 25 / 32).max(1)
    }
    pub fn absent(&self) -> Range<usize> {
        self.chains.len() - (self.chains.len() / 8).max(1)..self.chains.len()
    }
    pub fn churn(&self) -> Range<usize> {
        self.resident().end..self.absent().start
    }
}

/// A fingerprint of hashes and their order.
#[derive(Default, Clone, Copy)]
pub struct Fingerprint {
    pub count: u64,
    sum: u64,
}

impl Fingerprint {
    /// Adds the hash that stands at `index` of a list.
    pub fn add(&mut self, index: usize, hash: SequenceHash) {
        let bits = hash.as_u128();
        let folded = ((bits >> 64) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (bits as u64);
        self.count += 1;
        self.sum = self.sum.wrapping_add(folded.wrapping_mul(2 * index as u64 + 1));
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{:016x}", self.count, self.sum)
    }
}
