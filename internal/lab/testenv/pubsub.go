package testenv

import (
	"errors"
	"testing"
)

// EnvPubSubEndpoint names the environment variable with the URL of the shared Pub/Sub:
// the program of scripts/pubsub.
const EnvPubSubEndpoint = "NOTIFYD_TEST_PUBSUB_ENDPOINT"

// errNoPubSub is in the chain of the error if the emulator is not installed.
var errNoPubSub = errors.New("the emulator of Pub/Sub is missing: make setup builds it from scripts/pubsub")

// pubsub is state of the package for the same reason as postgres.
var pubsub = sharedEmulator{name: "Pub/Sub", env: EnvPubSubEndpoint, program: pubsubProgram} //nolint:gochecknoglobals // see postgres

// PubSub returns the URL of the Pub/Sub that all tests of this binary share: the one of
// [EnvPubSubEndpoint], or a private emulator that [Main] ends. It asks for no
// credentials. Tests create topics of their own.
func PubSub(tb testing.TB) (endpoint string) {
	tb.Helper()
	endpoint, err := pubsub.get(tb.Context())
	if err != nil && !errors.Is(err, errNoPubSub) {
		tb.Fatal(err)
	}
	require(tb, "pubsub", err)
	return endpoint
}

// pubsubProgram returns the emulator that scripts/pubsub/setup has built in this checkout.
func pubsubProgram() (name string, args []string, err error) {
	name, ok := fetched("scripts/pubsub/main.go", "pubsub", "emulator")
	if !ok {
		return "", nil, errNoPubSub
	}
	return name, nil, nil
}
