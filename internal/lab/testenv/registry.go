package testenv

import (
	"testing"

	"github.com/notifyd/notifyd/internal/lab/privateserver/kafkaserver"
)

// EnvSchemaRegistryURL names the environment variable with the URL of the shared schema registry, whose API is at
// [kafkaserver.RegistryPath]. It must allow anyone to register schemas.
const EnvSchemaRegistryURL = "NOTIFYD_TEST_SCHEMA_REGISTRY_URL"

// registry is state of the package for the same reason as postgres.
var registry sharedPlain //nolint:gochecknoglobals // see postgres

// SchemaRegistry returns the URL of the API of the schema registry that all tests of this binary share: the
// one of [EnvSchemaRegistryURL], or a private one that [Main] ends. Tests have subjects of their own.
func SchemaRegistry(tb testing.TB) string {
	tb.Helper()
	u, err := registry.get(tb.Context(), EnvSchemaRegistryURL, kafkaserver.Registry(), "http")
	orSkip(tb, "schema-registry", err)
	return u + kafkaserver.RegistryPath
}
