"""An S3 server for tests: moto, with the check of signatures on, one bucket and one user.

usage: s3_server.py BUCKET PORT [CERTIFICATE KEY]

Listens on 127.0.0.1, prints one line, "PORT ACCESS_KEY SECRET_KEY SESSION_ACCESS_KEY SESSION_SECRET_KEY
SESSION_TOKEN", and serves until it is killed. Port 0 means any; the keys are the same in every run. With a
certificate and its key it speaks TLS.
"""

import logging
import os
import sys

os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "inf"  # on again below

from moto import settings
from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.moto_api._internal import mock_random
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from moto.sts.models import sts_backends
from werkzeug.serving import WSGIRequestHandler, make_server

POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
TRUST = ('{"Version": "2012-10-17", "Statement": '
         '[{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}]}')


class KeepAlive(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"


def credentials():
    """Those of a user, and those of a session with a token."""
    mock_random.seed(1)
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    iam.create_user(region_name="us-east-1", user_name="tester", path="/", tags=None)
    iam.put_user_policy("tester", "all", POLICY)
    key = iam.create_access_key("tester")
    role = iam.create_role("role", TRUST, "/", None, None, [], 3600)
    iam.put_role_policy("role", "all", POLICY)
    session = sts_backends[DEFAULT_ACCOUNT_ID]["aws"].assume_role(
        region_name="us-east-1", role_session_name="test", role_arn=role.arn, policy=None, duration=3600,
        external_id="",
    )
    session_keys = (session.access_key_id, session.secret_access_key, session.session_token)
    return key.access_key_id, key.secret_access_key, *session_keys


def main():
    if len(sys.argv) not in (3, 5):
        sys.exit(__doc__)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    words = credentials()
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(sys.argv[1], "us-east-1")
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    server = make_server(
        "127.0.0.1",
        int(sys.argv[2]),
        DomainDispatcherApplication(create_backend_app),
        threaded=True,
        request_handler=KeepAlive,
        ssl_context=tuple(sys.argv[3:5]) or None,
    )
    print(server.server_port, *words, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
