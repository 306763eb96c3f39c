package tracing

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// variables reads "A=1 B=2".
func variables(env string) func(string) (string, bool) {
	vars := make(map[string]string)
	for v := range strings.FieldsSeq(env) {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestWanted(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]bool{
		"":                    false,
		"OTEL_SERVICE_NAME=x": false,
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318":                                                                   true,
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c:4318/v1/traces":                                                  true,
		"OTEL_EXPORTER_OTLP_ENDPOINT= OTEL_TRACES_SAMPLER=":                                                           false,
		"OTEL_TRACES_EXPORTER=otlp":                                                                                   true,
		"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318":                                         false,
		"OTEL_SDK_DISABLED=TRUE OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318":                                            false,
		"OTEL_SDK_DISABLED=false OTEL_EXPORTER_OTLP_ENDPOINT=https://c":                                               true,
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf":                                         true,
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/json":                                             true,
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                                                                            false,
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf OTEL_EXPORTER_OTLP_PROTOCOL=grpc": true,
		"OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0.25":         true,
		"OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=always_off OTEL_TRACES_SAMPLER_ARG=endpoint=x":                 true,
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20x,b=c OTEL_BSP_MAX_QUEUE_SIZE=9": true,
		"OTEL_TRACES_EXPORTER=otlp OTEL_SPAN_LINK_COUNT_LIMIT=-1 OTEL_EXPORTER_OTLP_COMPRESSION=gzip":                 true,
	} {
		if on, err := Wanted(variables(env)); err != nil || on != want {
			t.Errorf("%s: %t, %v; want %t", env, on, err, want)
		}
	}
}

// TestMistakes: each error names its variable and the cure, and shows no value
// that may be a secret.
func TestMistakes(t *testing.T) {
	t.Parallel()
	notPEM := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(notPEM, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	for env, want := range map[string]string{
		"OTEL_TRACES_EXPORTER=zipkin":                                               `OTEL_TRACES_EXPORTER: "zipkin" is not known: use otlp or none`,
		"OTEL_SDK_DISABLED=yes":                                                     `OTEL_SDK_DISABLED: "yes" is neither true nor false`,
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                                          `OTEL_EXPORTER_OTLP_PROTOCOL: "grpc" is not spoken: use http/protobuf`,
		"OTEL_EXPORTER_OTLP_ENDPOINT=hush:4318":                                     "OTEL_EXPORTER_OTLP_ENDPOINT: is not a URL like http://collector:4318",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://u:hush@c":                        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: has a user in it",
		"OTEL_EXPORTER_OTLP_HEADERS=hush":                                           "OTEL_EXPORTER_OTLP_HEADERS: is not a list like key=value",
		"OTEL_EXPORTER_OTLP_HEADERS=key=hush%2":                                     "OTEL_EXPORTER_OTLP_HEADERS: is not a list like key=value",
		"OTEL_EXPORTER_OTLP_TIMEOUT=10s":                                            `OTEL_EXPORTER_OTLP_TIMEOUT: "10s" is not a whole number from 1 on milliseconds`,
		"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION=zstd":                                `OTEL_EXPORTER_OTLP_TRACES_COMPRESSION: "zstd" is not known: use gzip, none`,
		"OTEL_EXPORTER_OTLP_INSECURE=1":                                             "use true, false",
		"OTEL_EXPORTER_OTLP_CERTIFICATE=/not/there":                                 "OTEL_EXPORTER_OTLP_CERTIFICATE: cannot be read",
		"OTEL_EXPORTER_OTLP_CERTIFICATE=" + notPEM:                                  "has no certificate in PEM",
		"OTEL_EXPORTER_OTLP_CLIENT_KEY=/k":                                          "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY belong together",
		"OTEL_EXPORTER_OTLP_CLIENT_KEY=/k OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=/c": "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: cannot be used",
		"OTEL_TRACES_SAMPLER=sometimes":                                             `OTEL_TRACES_SAMPLER: "sometimes" is not known: use always_on`,
		"OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=5%":               `OTEL_TRACES_SAMPLER_ARG: "5%" is not a share`,
		"OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=NaN":              "from 0 to 1",
		"OTEL_BSP_MAX_QUEUE_SIZE=0":                                                 `OTEL_BSP_MAX_QUEUE_SIZE: "0" is not a whole number from 1 on spans`,
		"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=many":                                      "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
		"OTEL_RESOURCE_ATTRIBUTES=production":                                       "OTEL_RESOURCE_ATTRIBUTES: is not a list like deployment.environment.name=production",
	} {
		if !strings.Contains(env, "ENDPOINT=") && !strings.Contains(env, "OTEL_TRACES_EXPORTER=") {
			env += " OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318"
		}
		if _, err := Wanted(variables(env)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v; want %s", env, err, want)
		}
	}
	_, err := Wanted(variables("OTEL_TRACES_EXPORTER=otlp OTEL_BSP_EXPORT_TIMEOUT=x OTEL_TRACES_SAMPLER=y"))
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("two mistakes: %v", err)
	}
}
