/* The client. With "http://host:port MODEL" behind the program's name it asks a real service; without, one
 * that is not there. */
#define _XOPEN_SOURCE 700
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/c/walk.h"

/* A port of loopback that is taken, and where nobody listens. */
static int take_port(char* url, size_t size) {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address;
  socklen_t length = sizeof address;
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  TRUE(taken >= 0 && bind(taken, (struct sockaddr*)&address, length) == 0);
  TRUE(getsockname(taken, (struct sockaddr*)&address, &length) == 0);
  snprintf(url, size, "http://127.0.0.1:%u", (unsigned)ntohs(address.sin_port));
  return taken;
}

void walk_client(void) {
  ashlar_client_options options = ASHLAR_CLIENT_OPTIONS_INIT;
  ashlar_route_query query = ASHLAR_ROUTE_QUERY_INIT;
  ashlar_route_score scores[2];
  const uint32_t tokens[2] = {1, 2};
  ashlar_client client;
  ashlar_answer answer;
  size_t count = 0;
  int ready = 0;
  char url[64];
  const int taken = take_port(url, sizeof url);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_client_create(NULL, &client));
  options.url = "https://127.0.0.1:1";
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_client_create(&options, &client));
  options.url = url;
  options.token = "token";
  options.max_bytes = 1000;
  OK(ashlar_client_create(&options, &client));
  EXPECT(ASHLAR_UNAVAILABLE, ashlar_client_health(client));
  EXPECT(ASHLAR_UNAVAILABLE, ashlar_client_ready(client, &ready));
  EXPECT(ASHLAR_UNAVAILABLE, ashlar_client_route(client, &query, tokens, 2, scores, 2, &count));
  EXPECT(ASHLAR_UNAVAILABLE, ashlar_client_workers(client, NULL, &answer));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_client_explain(client, NULL, &answer));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_client_request(client, "GET", "no slash", NULL, 0, &answer));
  OK(ashlar_client_destroy(client));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_client_health(client));
  answer.id = 0;
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_answer_destroy(answer));
  close(taken);
}

/* An engine holds the prompt from now on. */
static void compute_prompt(ashlar_client client, const char* model, const uint32_t* tokens, unsigned n) {
  char body[2048];
  int length = snprintf(body, sizeof body, "{\"model\":\"%s\",\"max_tokens\":1,\"prompt\":[", model);
  ashlar_answer answer;
  int32_t http_status = 0;
  unsigned i;
  for (i = 0; i < n; ++i)
    length += snprintf(body + length, sizeof body - (size_t)length, "%s%u", i == 0 ? "" : ",", tokens[i]);
  length += snprintf(body + length, sizeof body - (size_t)length, "]}");
  OK(ashlar_client_request(client, "POST", "/v1/completions", body, (size_t)length, &answer));
  OK(ashlar_answer_info(answer, &http_status, NULL));
  TRUE(http_status == 200);
  OK(ashlar_answer_destroy(answer));
}

void ask_service(const char* url, const char* model) {
  ashlar_client_options options = ASHLAR_CLIENT_OPTIONS_INIT;
  ashlar_route_query query = ASHLAR_ROUTE_QUERY_INIT;
  ashlar_route_score scores[8];
  uint32_t tokens[64];
  ashlar_client client;
  ashlar_answer answer;
  int32_t http_status = 0;
  size_t bytes = 0, count = 0;
  char* body;
  int ready = 0;
  unsigned i;
  for (i = 0; i < 64; ++i) tokens[i] = i;
  options.url = url;
  options.timeout_ms = 120000;
  OK(ashlar_client_create(&options, &client));
  OK(ashlar_client_health(client));
  OK(ashlar_client_ready(client, &ready));
  TRUE(ready == 1);
  query.model = model;
  OK(ashlar_client_route(client, &query, tokens, 64, scores, 8, &count));
  compute_prompt(client, model, tokens, 64);
  do { /* until the engine's events are there */
    OK(ashlar_client_route(client, &query, tokens, 64, scores, 8, &count));
  } while (count == 0);
  for (i = 0; i < count; ++i)
    TRUE(scores[i].instance != 0 && scores[i].device <= scores[i].host && scores[i].host <= scores[i].disk &&
         scores[i].disk <= scores[i].longest && scores[i].longest <= 64);
  query.routing_group = "no such group";
  EXPECT(ASHLAR_NOT_FOUND, ashlar_client_route(client, &query, tokens, 64, scores, 8, &count));
  query.routing_group = NULL;
  query.model = "no such model";
  EXPECT(ASHLAR_NOT_FOUND, ashlar_client_route(client, &query, tokens, 64, scores, 8, &count));
  OK(ashlar_client_workers(client, model, &answer));
  OK(ashlar_answer_info(answer, &http_status, &bytes));
  TRUE(http_status == 200 && bytes > 2);
  OK(ashlar_answer_destroy(answer));
  EXPECT(ASHLAR_NOT_FOUND, ashlar_client_explain(client, "0123456789abcdef-1", &answer));
  OK(ashlar_client_request(client, "GET", "/fleet", NULL, 0, &answer));
  OK(ashlar_answer_info(answer, &http_status, &bytes));
  body = malloc(bytes);
  TRUE(body != NULL);
  EXPECT(ASHLAR_CAPACITY, ashlar_answer_body(answer, body, bytes - 1, &count));
  OK(ashlar_answer_body(answer, body, bytes, &count));
  TRUE(count == bytes && body[0] == '{');
  free(body);
  OK(ashlar_answer_destroy(answer));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_answer_info(answer, NULL, NULL));
  OK(ashlar_client_destroy(client));
}
