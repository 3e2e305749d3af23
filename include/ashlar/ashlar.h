// What a first user meets: blocks, sequences, tiers, events, index.
//
//   block::BlockManager<Tier>      hands out the blocks of one tier, shares and evicts them
//   block::SequenceManager<Tier>   block tables for whole sequences, with prefix caching
//   block::RequestSequence<Tier>   the same for a scheduler: chunks, speculation, forks, preemption
//   block::G1 … block::G4          the tiers: GPU memory, host memory, local SSD, remote storage
//   tiers::KvBlockManager          all tiers of one engine: offload and onboard
//   events::EventLog, EventManager what a manager stored and removed; batches of it for listeners
//   index::FlashIndex              which worker holds which prefix, for routers
//
// Leaves that need a third-party library (ashlar/backend/…) and the feeds (ashlar/feed/…) are included by
// name.
#pragma once

#include "ashlar/block/block_manager.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/block/request_sequence.h"
#include "ashlar/block/sequence_batch.h"
#include "ashlar/block/sequence_manager.h"
#include "ashlar/block/tier.h"
#include "ashlar/events/event_log.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/index/indexer.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "ashlar/tokens/token_sequence.h"
