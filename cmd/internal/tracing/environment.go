package tracing

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// environment looks up variables. Empty is the same as unset, as OpenTelemetry specifies.
type environment func(name string) (string, bool)

func (e environment) get(name string) string {
	value, _ := e(name)
	return strings.TrimSpace(value)
}

// Wanted reports whether the environment requests traces: OTEL_TRACES_EXPORTER is
// otlp, or an endpoint is set, and no variable disables them. The error names
// every variable that is invalid, and the cure, and shows no value that may be a
// secret. The SDK would only write to standard error and ignore the variable.
func Wanted(lookup func(name string) (string, bool)) (bool, error) {
	e := environment(lookup)
	endpoint := e.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") + e.get("OTEL_EXPORTER_OTLP_ENDPOINT")
	return e.wants("TRACES", endpoint, slices.Concat(exporterRules("TRACES"), spanRules()), e.checkSampler)
}

// WantedMetrics is [Wanted] for metrics: OTEL_METRICS_EXPORTER is otlp, or OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is set. The
// endpoint of all signals alone does not request them: most metrics are scraped, and would arrive twice.
func WantedMetrics(lookup func(name string) (string, bool)) (bool, error) {
	e := environment(lookup)
	rules := slices.Concat(exporterRules("METRICS"), metricRules())
	return e.wants("METRICS", e.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"), rules, func() error { return nil })
}

// wants reports whether the environment requests a signal, whose endpoint is set or not.
func (e environment) wants(signal, endpoint string, rules []rule, more func() error) (bool, error) {
	switch disabled := e.get("OTEL_SDK_DISABLED"); {
	case strings.EqualFold(disabled, "true"):
		return false, nil
	case disabled != "" && !strings.EqualFold(disabled, "false"):
		return false, fmt.Errorf("OTEL_SDK_DISABLED: %q is neither true nor false", disabled)
	}

	name := "OTEL_" + signal + "_EXPORTER"
	switch exporter := e.get(name); {
	case exporter == "none", exporter == "" && endpoint == "":
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, fmt.Errorf("%s: %q is not known: use otlp or none", name, exporter)
	}

	return true, errors.Join(e.check(signal, rules), more())
}

// rule checks variables of one kind.
type rule struct {
	names []string
	wrong func(value string) string // the mistake and the cure; "" for a valid value
}

// exporterRules returns the rules of an exporter. Each setting has two names: for all signals, and for its own.
func exporterRules(signal string) []rule {
	ofExporter := func(setting string) []string {
		return []string{"OTEL_EXPORTER_OTLP_" + setting, "OTEL_EXPORTER_OTLP_" + signal + "_" + setting}
	}

	return []rule{
		{ofExporter("ENDPOINT"), wrongURL},
		{ofExporter("HEADERS"), func(v string) string { return wrongPairs(v, "key=value,other=value") }},
		{ofExporter("TIMEOUT"), atLeast(1, "milliseconds")},
		{ofExporter("COMPRESSION"), oneOf("gzip", "none")},
		{ofExporter("INSECURE"), anyCase(oneOf("true", "false"))},
		{ofExporter("CERTIFICATE"), wrongAuthorities},
		{[]string{"OTEL_RESOURCE_ATTRIBUTES"}, func(v string) string { return wrongPairs(v, "deployment.environment.name=production,team=shop") }},
	}
}

// metricRules returns the rules of the reader of metrics.
func metricRules() []rule {
	return []rule{
		{[]string{"OTEL_METRIC_EXPORT_INTERVAL", "OTEL_METRIC_EXPORT_TIMEOUT"}, atLeast(1, "milliseconds")},
	}
}

// spanRules returns the rules of spans.
func spanRules() []rule {
	return []rule{
		{[]string{"OTEL_TRACES_SAMPLER"}, anyCase(oneOf("always_on", "always_off", "traceidratio",
			"parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"))},
		{[]string{"OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_EXPORT_TIMEOUT"}, atLeast(1, "milliseconds")},
		{[]string{"OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"}, atLeast(1, "spans")},
		{[]string{
			"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
			"OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
			"OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
			"OTEL_SPAN_LINK_COUNT_LIMIT", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
		}, atLeast(-1, "(-1 means no limit)")},
	}
}

// check returns all mistakes, joined.
func (e environment) check(signal string, rules []rule) error {
	var errs []error
	for _, r := range rules {
		for _, name := range r.names {
			if value := e.get(name); value != "" {
				if why := r.wrong(value); why != "" {
					errs = append(errs, fmt.Errorf("%s: %s", name, why))
				}
			}
		}
	}

	return errors.Join(append(errs, e.checkProtocol(signal), e.checkClientCertificate("OTEL_EXPORTER_OTLP_"),
		e.checkClientCertificate("OTEL_EXPORTER_OTLP_"+signal+"_"))...)
}

// checkProtocol checks the variable that takes precedence.
func (e environment) checkProtocol(signal string) error {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch p := e.get(name); {
		case p == "":
		case p == "http/protobuf", p == "http/json" && signal == "TRACES": // the exporter of metrics knows no JSON
			return nil
		default:
			return fmt.Errorf("%s: %q is not spoken: use http/protobuf, to port 4318 of a collector", name, p)
		}
	}
	return nil
}

func (e environment) checkSampler() error {
	arg := e.get("OTEL_TRACES_SAMPLER_ARG")
	if arg == "" || !strings.HasSuffix(strings.ToLower(e.get("OTEL_TRACES_SAMPLER")), "traceidratio") {
		return nil // the others take none
	}

	if ratio, err := strconv.ParseFloat(arg, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
		return fmt.Errorf("OTEL_TRACES_SAMPLER_ARG: %q is not a share: use a number from 0 to 1, such as 0.05", arg)
	}
	return nil
}

func (e environment) checkClientCertificate(prefix string) error {
	certificate := e.get(prefix + "CLIENT_CERTIFICATE")
	key := e.get(prefix + "CLIENT_KEY")
	switch {
	case certificate == "" && key == "":
		return nil
	case certificate == "" || key == "":
		return fmt.Errorf("%[1]sCLIENT_CERTIFICATE and %[1]sCLIENT_KEY belong together: set both, or neither", prefix)
	}

	if _, err := tls.LoadX509KeyPair(certificate, key); err != nil {
		return fmt.Errorf("%sCLIENT_CERTIFICATE: cannot be used: %w", prefix, err)
	}
	return nil
}

// wrongURL describes the mistake without the value, which may contain a password.
func wrongURL(value string) string {
	u, err := url.Parse(value)
	isHTTP := err == nil && (u.Scheme == "http" || u.Scheme == "https")

	switch {
	case !isHTTP || u.Host == "":
		return "is not a URL like http://collector:4318"
	case u.User != nil:
		return "has a user in it: send credentials with OTEL_EXPORTER_OTLP_HEADERS"
	}
	return ""
}

// wrongPairs describes the mistake without the value: headers are secrets.
func wrongPairs(value, example string) string {
	for pair := range strings.SplitSeq(value, ",") {
		name, text, found := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		isName := name != "" && !strings.ContainsAny(name, " \t\"")
		_, err := url.PathUnescape(text)
		if !found || !isName || err != nil {
			return "is not a list like " + example + " (with %25 for a percent sign, %2C for a comma)"
		}
	}
	return ""
}

func wrongAuthorities(path string) string {
	text, err := os.ReadFile(path)
	switch {
	case err != nil:
		return fmt.Sprintf("cannot be read: %v", err)
	case !x509.NewCertPool().AppendCertsFromPEM(text):
		return fmt.Sprintf("%q has no certificate in PEM", path)
	}
	return ""
}

func atLeast(least int, unit string) func(string) string {
	return func(value string) string {
		if n, err := strconv.Atoi(value); err != nil || n < least {
			return fmt.Sprintf("%q is not a whole number from %d on %s", value, least, unit)
		}
		return ""
	}
}

func oneOf(known ...string) func(string) string {
	return func(value string) string {
		if slices.Contains(known, value) {
			return ""
		}
		return fmt.Sprintf("%q is not known: use %s", value, strings.Join(known, ", "))
	}
}

func anyCase(wrong func(string) string) func(string) string {
	return func(value string) string { return wrong(strings.ToLower(value)) }
}
