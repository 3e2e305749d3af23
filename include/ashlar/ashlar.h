// Everything a user of the block layer needs.
#pragma once

#include "ashlar/block/block_manager.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/block/request_sequence.h"
#include "ashlar/block/sequence_batch.h"
#include "ashlar/block/sequence_manager.h"
#include "ashlar/events/event_log.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/token_sequence.h"
