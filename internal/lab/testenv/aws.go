package testenv

import (
	"errors"
	"path/filepath"
	"testing"
)

// EnvAWSEndpoint names the environment variable with the URL of the shared EventBridge and Kinesis:
// an emulator that accepts any credentials.
const EnvAWSEndpoint = "NOTIFYD_TEST_AWS_ENDPOINT"

// awsScript runs the emulator on loopback and prints its URL. It keeps connections open, which the emulator's program
// does not do. It passes one request at a time to the emulator, whose Kinesis loses records of concurrent puts. It reads
// each body before that, so that a client that sends half a request blocks no other client. The script ends with its
// standard input, and so with this process, even if that is killed.
const awsScript = `
import io, logging, os, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
WSGIRequestHandler.protocol_version = "HTTP/1.1"
emulator = DomainDispatcherApplication(create_backend_app)
turn = threading.Lock()
def one_at_a_time(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    with turn:
        return list(emulator(environ, start_response))
server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
print("http://127.0.0.1:%d" % server.port, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server.serve_forever()
`

// errNoAWS is in the chain of the error if the emulator is not installed.
var errNoAWS = errors.New("the emulator of AWS is missing: make setup fetches it from PyPI, and Python 3 runs it")

// aws is state of the package for the same reason as postgres.
var aws = sharedEmulator{name: "AWS", env: EnvAWSEndpoint, program: awsProgram} //nolint:gochecknoglobals // see postgres

// AWS returns the URL of the EventBridge and Kinesis that all tests of this binary share: the one of [EnvAWSEndpoint], or
// a private emulator that [Main] ends. It accepts any credentials. Each test creates its buses and streams. For SQS and
// SNS, [SQS] is many times faster.
func AWS(tb testing.TB) (endpoint string) {
	tb.Helper()
	endpoint, err := aws.get(tb.Context())
	if err != nil && !errors.Is(err, errNoAWS) {
		tb.Fatal(err)
	}
	require(tb, "aws", err)
	return endpoint
}

// awsProgram returns the emulator that scripts/aws/setup has fetched into this checkout.
func awsProgram() (name string, args []string, err error) {
	// Setup writes this file last.
	last, ok := fetched("scripts/aws/requirements.txt", "aws", "requirements.txt")
	if !ok {
		return "", nil, errNoAWS
	}
	return filepath.Join(filepath.Dir(last), "bin", "python3"), []string{"-c", awsScript}, nil
}
