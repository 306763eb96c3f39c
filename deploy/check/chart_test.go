// Package check reads what is below deploy/ with the types of the programs that use it: Kubernetes, the Prometheus operator
// and Compose. It has a module of its own, because their modules are many.
package check

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const chart = "../helm/notifyd"

// kinds returns an empty object of each kind that the chart may make.
func kinds() map[string]meta.Object {
	return map[string]meta.Object{
		"v1 ConfigMap": new(core.ConfigMap), "v1 Service": new(core.Service), "v1 ServiceAccount": new(core.ServiceAccount),
		"apps/v1 Deployment": new(apps.Deployment), "batch/v1 Job": new(batch.Job), "policy/v1 PodDisruptionBudget": new(policy.PodDisruptionBudget),
		"networking.k8s.io/v1 NetworkPolicy":      new(networking.NetworkPolicy),
		"monitoring.coreos.com/v1 ServiceMonitor": new(monitoring.ServiceMonitor),
		"monitoring.coreos.com/v1 PrometheusRule": new(monitoring.PrometheusRule),
	}
}

// helm renders the chart with the content of a values file. Without helm it skips the test, unless the test is required.
func helm(t *testing.T, values string) string {
	t.Helper()
	program := "../../.cache/helm/helm" // of make setup-all
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("helm"); err != nil {
			if required := strings.Split(os.Getenv("NOTIFYD_TEST_REQUIRE"), ","); slices.Contains(required, "all") || slices.Contains(required, "helm") {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), program, "template", "shop", chart, "--namespace", "shop", "--values", "-")
	cmd.Stdin = strings.NewReader(values)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("%s\n%s", exit.Stderr, values)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

const least = `
database: {existingSecret: db}
image: {repository: registry.example.com/notifyd}
`

// everything sets each value of the chart that adds a field.
const everything = `
replicaCount: 3
database: {existingSecret: db, key: url}
image: {repository: registry.example.com/notifyd, tag: "1", pullPolicy: Always}
imagePullSecrets: [{name: registry}]
existingConfigSecret: {name: whole}
env: [{name: SMTP_PASSWORD, valueFrom: {secretKeyRef: {name: smtp, key: password}}}]
envFrom: [{secretRef: {name: more}}]
migrate: {existingSecret: owner, notify: auto, resources: {requests: {cpu: 10m}}}
serviceAccount: {name: relay, annotations: {example.com/role: relay}}
podAnnotations: {example.com/note: a}
podLabels: {team: b}
service: {https: true, annotations: {example.com/note: c}}
serviceMonitor: {enabled: true, tlsConfig: {serverName: relay}, tokenSecret: {name: admin}, labels: {release: prom}}
prometheusRule: {enabled: true, runbookBase: "https://git.example.com/notifyd/blob/main/", labels: {release: prom}}
dashboard: {enabled: true, annotations: {grafana_folder: Events}}
networkPolicy:
  enabled: true
  from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}, podSelector: {matchLabels: {app: prometheus}}}]
  database: {port: 6432, to: [{ipBlock: {cidr: 203.0.113.7/32}}]}
  dns: [{namespaceSelector: {}}]
  egress: [{to: [{ipBlock: {cidr: 198.51.100.0/24, except: [198.51.100.1/32]}}], ports: [{port: 443, protocol: TCP}]}]
podDisruptionBudget: {maxUnavailable: 50%}
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: spot, operator: Exists}]
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: kubernetes.io/hostname}}]}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}]
extraVolumes: [{name: tls, secret: {secretName: tls}}]
extraVolumeMounts: [{name: tls, mountPath: /tls, readOnly: true}]
`

// TestChartTypes decodes each object of the chart into its type. An unknown or repeated field is an error, as with
// "kubectl apply --validate=strict", and so is a name or a label that Kubernetes refuses.
func TestChartTypes(t *testing.T) {
	t.Parallel()
	made := make(map[string]bool)
	for name, values := range map[string]string{
		"least": least, "everything": everything, "closed": least + "networkPolicy: {enabled: true}\nmigrate: {enabled: false}\n", "long": least + "fullnameOverride: " + strings.Repeat("long-", 12) + "\nnetworkPolicy: {enabled: true}\n",
	} {
		for text := range strings.SplitSeq(helm(t, values), "\n---\n") {
			kind, err := decode(text)
			if err != nil {
				t.Errorf("%s, %s: %v in\n%s", name, kind, err, text)
			}
			made[kind] = true
		}
	}
	for kind := range kinds() {
		if !made[kind] {
			t.Errorf("no values make a %s", kind)
		}
	}
}

// decode reads one object, and returns its version and kind.
func decode(text string) (kind string, err error) {
	var t meta.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &t); err != nil {
		return "", err
	}
	kind = t.APIVersion + " " + t.Kind
	object, known := kinds()[kind]
	if !known {
		return kind, errors.New("unknown kind")
	}
	asJSON, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return kind, err
	}
	unknown, err := json.UnmarshalStrict(asJSON, object)
	if err := errors.Join(append(unknown, err)...); err != nil {
		return kind, err
	}
	var errs field.ErrorList
	for _, problem := range validation.IsDNS1123Subdomain(object.GetName()) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), object.GetName(), problem))
	}
	errs = append(errs, metavalidation.ValidateLabels(object.GetLabels(), field.NewPath("metadata", "labels"))...)
	var pod *core.PodTemplateSpec
	switch o := object.(type) {
	case *apps.Deployment:
		pod = &o.Spec.Template
		errs = append(errs, metavalidation.ValidateLabelSelector(o.Spec.Selector, metavalidation.LabelSelectorValidationOptions{}, field.NewPath("spec", "selector"))...)
	case *batch.Job:
		pod = &o.Spec.Template
	case *networking.NetworkPolicy:
		errs = append(errs, metavalidation.ValidateLabelSelector(&o.Spec.PodSelector, metavalidation.LabelSelectorValidationOptions{}, field.NewPath("spec", "podSelector"))...)
	}
	if pod != nil {
		errs = append(errs, metavalidation.ValidateLabels(pod.Labels, field.NewPath("spec", "template", "metadata", "labels"))...)
	}
	if len(errs) > 0 {
		return kind, errs.ToAggregate()
	}
	return kind, nil
}

// TestDecode: decode finds what it is there for.
func TestDecode(t *testing.T) {
	t.Parallel()
	const good = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\nspec: {podSelector: {}}\n"
	if kind, err := decode(good); err != nil || kind != "networking.k8s.io/v1 NetworkPolicy" {
		t.Errorf("%q, %v", kind, err)
	}
	for _, c := range []struct{ old, bad, want string }{
		{"podSelector", "podselector: {}, podSelector", "unknown field"},
		{"{podSelector", "{egress: [{port: 53}], podSelector", `unknown field "spec.egress[0].port"`},
		{"{podSelector", "{egress: {}, podSelector", "cannot unmarshal object"},
		{"name: a", "name: A", "lowercase"},
		{"{name: a", "{labels: {app: a b}, name: a", "metadata.labels"},
		{"networking.k8s.io/v1", "networking.k8s.io/v1beta1", "unknown kind"},
	} {
		if _, err := decode(strings.Replace(good, c.old, c.bad, 1)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.bad, err, c.want)
		}
	}
}
