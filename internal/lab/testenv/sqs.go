package testenv

import (
	"errors"
	"os/exec"
	"testing"
)

// EnvSQSEndpoint names the environment variable with the URL of the shared SQS and SNS:
// an emulator that accepts any credentials.
const EnvSQSEndpoint = "NOTIFYD_TEST_SQS_ENDPOINT"

// sqsScript runs the emulator on loopback, which the emulator's program cannot, and prints its port. The script ends with
// its standard input, and so with this process, even if that is killed.
const sqsScript = `
import { pathToFileURL } from "node:url";
const { buildApp } = await import(pathToFileURL(process.argv[1]).href);
const app = buildApp({ logger: false });
process.stdin.on("end", () => process.exit(0)).resume();
console.log(await app.listen({ port: 0, host: "127.0.0.1" }));
`

// errNoSQS is in the chain of the error if the emulator is not installed.
var errNoSQS = errors.New("the emulator of SQS is missing: make setup fetches it from npm, and node runs it")

// sqs is state of the package for the same reason as postgres.
var sqs = sharedEmulator{name: "SQS", env: EnvSQSEndpoint, program: sqsProgram} //nolint:gochecknoglobals // see postgres

// SQS returns the URL of the SQS and SNS that all tests of this binary share: the one of
// [EnvSQSEndpoint], or a private emulator that [Main] ends. It accepts any
// credentials. Tests create queues and topics of their own.
func SQS(tb testing.TB) (endpoint string) {
	tb.Helper()
	endpoint, err := sqs.get(tb.Context())
	if err != nil && !errors.Is(err, errNoSQS) {
		tb.Fatal(err)
	}
	require(tb, "sqs", err)
	return endpoint
}

// sqsProgram returns the emulator that scripts/sqs/setup has fetched into this checkout.
func sqsProgram() (name string, args []string, err error) {
	app, ok := fetched("scripts/sqs/package.json", "sqs", "node_modules", "fauxqs", "dist", "app.js")
	if !ok {
		return "", nil, errNoSQS
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return "", nil, errNoSQS
	}
	return node, []string{"--input-type=module", "--eval", sqsScript, app}, nil
}
