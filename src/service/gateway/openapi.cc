// The service's own endpoints as OpenAPI.
#include "service/gateway/api.h"

namespace ashlar::service {

std::string_view openapi_text() {
  return R"({
 "openapi": "3.1.0",
 "info": {
  "title": "ashlar serve",
  "version": "1",
  "description": "A router in front of inference engines. Other paths go to a worker."
 },
 "components": {
  "securitySchemes": {"token": {"type": "apiKey", "in": "header", "name": "x-ashlar-token"}},
  "schemas": {
   "Error": {"type": "object", "properties": {"error": {"type": "string"}}},
   "Query": {
    "type": "object",
    "required": ["token_ids", "model_name"],
    "properties": {
     "token_ids": {"type": "array", "items": {"type": "integer"}},
     "model_name": {"type": "string"},
     "routing_group": {"type": "string"},
     "lora_name": {"type": "string"},
     "cache_salt": {"type": "string"}
    }
   },
   "HashQuery": {
    "type": "object",
    "required": ["block_hashes", "model_name"],
    "properties": {
     "block_hashes": {"type": "array", "items": {"type": "integer", "format": "int64"}},
     "model_name": {"type": "string"},
     "routing_group": {"type": "string"}
    }
   },
   "Scores": {
    "type": "object",
    "properties": {
     "scores": {"type": "object"},
     "frequencies": {"type": "array", "items": {"type": "integer"}},
     "instances": {"type": "object"}
    }
   },
   "Registration": {
    "type": "object",
    "required": ["instance_id", "endpoint", "model_name", "block_size"],
    "properties": {
     "instance_id": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
     "endpoint": {"type": "string"},
     "model_name": {"type": "string"},
     "block_size": {"type": "integer"},
     "routing_group": {"type": "string"},
     "dp_rank": {"type": "integer"},
     "replay_endpoint": {"type": "string"},
     "additional_salt": {"type": "string"}
    }
   },
   "Rank": {
    "type": "object",
    "required": ["state"],
    "properties": {
     "dp_rank": {"type": "integer"},
     "state": {"type": "string", "enum": ["EXACT", "DEGRADED", "FALLBACK"]},
     "reason": {"type": "string"},
     "events": {"type": "string"},
     "block_size": {"type": "integer"},
     "blocks": {"type": "integer"},
     "messages": {"type": "integer"},
     "lost": {"type": "integer"},
     "gaps": {"type": "integer"},
     "replays": {"type": "integer"},
     "restarts": {"type": "integer"},
     "clears": {"type": "integer"},
     "requests": {"type": "integer"},
     "prefill_tokens": {"type": "integer"},
     "decode_blocks": {"type": "integer"},
     "chosen": {"type": "integer"},
     "tiers": {"type": "object", "additionalProperties": {"type": "object"}}
    }
   },
   "Fleet": {
    "type": "object",
    "required": ["draining", "waiting", "workers"],
    "properties": {
     "draining": {"type": "boolean"},
     "waiting": {"type": "integer"},
     "workers": {
      "type": "array",
      "items": {
       "type": "object",
       "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "model": {"type": "string"},
        "address": {"type": "string"},
        "up": {"type": "boolean"},
        "problem": {"type": "string"},
        "ranks": {"type": "array", "items": {"$ref": "#/components/schemas/Rank"}}
       }
      }
     }
    }
   },
   "Candidate": {
    "type": "object",
    "properties": {
     "worker": {"type": "integer"},
     "name": {"type": "string"},
     "address": {"type": "string"},
     "dp_rank": {"type": "integer"},
     "state": {"type": "string", "enum": ["EXACT", "DEGRADED", "FALLBACK"]},
     "excluded": {"type": "string"},
     "blocks": {"type": "object", "additionalProperties": {"type": "integer"}},
     "depth": {"type": "integer"},
     "predicted_depth": {"type": "integer"},
     "requests": {"type": "integer"},
     "prefill_tokens": {"type": "integer"},
     "decode_blocks": {"type": "integer"},
     "cost": {"type": "object", "additionalProperties": {"type": "integer"}}
    }
   },
   "Receipt": {
    "type": "object",
    "required": ["id", "worker", "state", "candidates"],
    "properties": {
     "id": {"type": "string"},
     "model": {"type": "string"},
     "worker": {"type": "string"},
     "worker_id": {"type": "integer"},
     "dp_rank": {"type": "integer"},
     "state": {"type": "string", "enum": ["EXACT", "DEGRADED", "FALLBACK"]},
     "state_reason": {"type": "string"},
     "policy": {"type": "string"},
     "block_size": {"type": "integer"},
     "prompt_tokens": {"type": "integer"},
     "prompt_tokens_are_estimated": {"type": "boolean"},
     "tokens": {"type": "string"},
     "claim_reason": {"type": "string"},
     "cached_tokens": {"type": "integer"},
     "available_tokens": {"type": "integer"},
     "missed_blocks": {"type": "object", "additionalProperties": {"type": "integer"}},
     "draw": {"type": "integer"},
     "outcome": {
      "oneOf": [
       {"type": "null"},
       {
        "type": "object",
        "properties": {
         "end": {"type": "string"},
         "status": {"type": "integer"},
         "delivered_tokens": {"type": ["integer", "null"]},
         "prompt_tokens": {"type": ["integer", "null"]},
         "output_tokens": {"type": ["integer", "null"]},
         "misroute": {"type": "string"}
        }
       }
      ]
     },
     "candidates": {"type": "array", "items": {"$ref": "#/components/schemas/Candidate"}}
    }
   },
   "Worker": {
    "type": "object",
    "properties": {
     "instance_id": {"type": "integer"},
     "source": {"type": "string"},
     "status": {"type": "string", "enum": ["active", "pending", "failed", "paused"]},
     "model_name": {"type": "string"},
     "routing_group": {"type": "string"},
     "block_size": {"type": "integer"},
     "endpoints": {"type": "object", "additionalProperties": {"type": "string"}},
     "listeners": {
      "type": "object",
      "additionalProperties": {
       "type": "object",
       "properties": {
        "endpoint": {"type": "string"},
        "status": {"type": "string", "enum": ["active", "pending", "failed", "paused"]},
        "last_error": {"type": "string"}
       }
      }
     }
    }
   },
   "Dump": {
    "type": "object",
    "additionalProperties": {
     "type": "object",
     "properties": {
      "block_size": {"type": "integer"},
      "events": {"type": "array", "items": {"type": "object"}},
      "workers": {"type": "object", "additionalProperties": {"type": "string"}},
      "states": {
       "type": "object",
       "additionalProperties": {"type": "object", "additionalProperties": {"type": "object"}}
      }
     }
    }
   }
  }
 },
 "security": [{"token": []}],
 "paths": {
  "/health": {
   "get": {
    "summary": "Whether the process is alive",
    "security": [],
    "responses": {"200": {"description": "it is"}}
   }
  },
  "/ready": {
   "get": {
    "summary": "Whether requests are taken",
    "security": [],
    "responses": {"200": {"description": "a worker is up"}, "503": {"description": "none is, or it stops"}}
   }
  },
  "/metrics": {"get": {"summary": "Prometheus text", "responses": {"200": {"description": "the page"}}}},
  "/openapi.json": {
   "get": {"summary": "This description", "responses": {"200": {"description": "OpenAPI 3.1"}}}
  },
  "/v1/models/{id}": {
   "get": {
    "summary": "A model, as its worker tells of it",
    "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}],
    "responses": {"200": {"description": "its entry"}, "404": {"description": "no worker serves it"}}
   }
  },
  "/v1/models": {
   "get": {"summary": "The models of all workers", "responses": {"200": {"description": "a list"}}}
  },
  "/": {
   "get": {"summary": "The live page", "security": [], "responses": {"200": {"description": "HTML"}}}
  },
  "/ui": {
   "get": {"summary": "The live page, as /", "security": [], "responses": {"200": {"description": "HTML"}}}
  },
  "/ui/{file}": {
   "get": {
    "summary": "Files of the live page",
    "security": [],
    "parameters": [{"name": "file", "in": "path", "required": true, "schema": {"type": "string"}}],
    "responses": {"200": {"description": "the file"}, "404": {"description": "no such file"}}
   }
  },
  "/live": {
   "get": {
    "summary": "What the live page shows: counters, workers, the last decisions in brief",
    "parameters": [{"name": "decisions", "in": "query", "schema": {"type": "integer"}}],
    "responses": {"200": {"description": "the state now"}}
   }
  },
  "/past": {
   "get": {
    "summary": "The page over the router's own journal, with time travel; holds no data",
    "responses": {"200": {"description": "HTML"}}
   }
  },
  "/past/{question}": {
   "get": {
    "summary": "What that page asks: live, timeline, tree and decisions/{id}, of the journal",
    "parameters": [
     {"name": "question", "in": "path", "required": true, "schema": {"type": "string"}},
     {"name": "at", "in": "query", "schema": {"type": "integer"}}
    ],
    "responses": {"200": {"description": "the answer"}, "404": {"description": "no journal is written"},
                  "503": {"description": "it cannot be read, or has no decision yet"}}
   }
  },
  "/tree": {
   "get": {
    "summary": "The prefixes that the workers of a model hold, as a tree of at most 2,000 elements",
    "parameters": [
     {"name": "model", "in": "query", "schema": {"type": "string"}},
     {"name": "root", "in": "query", "schema": {"type": "string"}},
     {"name": "depth", "in": "query", "schema": {"type": "integer"}},
     {"name": "limit", "in": "query", "schema": {"type": "integer"}},
     {"name": "offset", "in": "query", "schema": {"type": "integer"}}
    ],
    "responses": {"200": {"description": "the tree"}, "404": {"description": "no such model or prefix"}}
   }
  },
  "/fleet": {
   "get": {
    "summary": "Workers with state, reason, events, load and blocks by tier",
    "responses": {
     "200": {
      "description": "the fleet",
      "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Fleet"}}}
     }
    }
   }
  },
  "/decisions": {
   "get": {
    "summary": "The last decisions",
    "parameters": [{"name": "limit", "in": "query", "schema": {"type": "integer"}}],
    "responses": {
     "200": {
      "description": "receipts, the youngest first",
      "content": {
       "application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/Receipt"}}}
      }
     }
    }
   }
  },
  "/decisions/{id}": {
   "get": {
    "summary": "The receipt of a decision, with all candidates and the terms of their cost",
    "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}],
    "responses": {
     "200": {
      "description": "the receipt",
      "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Receipt"}}}
     },
     "404": {"description": "not kept"}
    }
   }
  },
  "/query": {
   "post": {
    "summary": "What workers hold of a prompt, in tokens",
    "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Query"}}}},
    "responses": {
     "200": {
      "description": "scores",
      "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Scores"}}}
     },
     "400": {"description": "the body cannot be read"},
     "404": {"description": "no such model"}
    }
   }
  },
  "/query_by_hash": {
   "post": {
    "summary": "The same by the local hashes of blocks",
    "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/HashQuery"}}}},
    "responses": {
     "200": {
      "description": "scores",
      "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Scores"}}}
     }
    }
   }
  },
  "/register": {
   "post": {
    "summary": "Listen to a worker's events, for queries only",
    "requestBody": {
     "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Registration"}}}
    },
    "responses": {
     "201": {"description": "it listens"},
     "400": {"description": "a field is wrong"},
     "409": {"description": "registered already"}
    }
   }
  },
  "/unregister": {
   "post": {
    "summary": "The opposite",
    "responses": {"200": {"description": "done"}, "404": {"description": "not registered"}}
   }
  },
  "/workers": {
   "get": {
    "summary": "Workers in the form of an indexer",
    "parameters": [
     {"name": "model_name", "in": "query", "schema": {"type": "string"}},
     {"name": "routing_group", "in": "query", "schema": {"type": "string"}}
    ],
    "responses": {
     "200": {
      "description": "a list",
      "content": {
       "application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/Worker"}}}
      }
     }
    }
   }
  },
  "/dump": {
   "get": {
    "summary": "Everything that workers hold, as router events",
    "responses": {
     "200": {
      "description": "by model and group",
      "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Dump"}}}
     }
    }
   }
  }
 }
})";
}

}  // namespace ashlar::service
