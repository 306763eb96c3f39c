//go:build testall

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

const chart = deployDir + "/helm/notifyd"

// helm runs it; make setup puts it into .cache where the system has none.
func helm(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	program := "../../.cache/helm/helm"
	if _, err := os.Stat(program); err != nil {
		program = testenv.Program(t, "helm")
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = errors.New(string(exit.Stderr))
	}
	return string(out), err
}

// object is what these tests look at of a Kubernetes object.
type object struct {
	Kind     string
	Metadata struct {
		Name                string
		Annotations, Labels map[string]string
	}
	Data map[string]string
	Spec struct {
		Groups         any      // of a PrometheusRule
		PodSelector    selector `yaml:"podSelector"`
		PolicyTypes    []string `yaml:"policyTypes"`
		Ingress        []policyRule
		Egress         []policyRule
		Replicas       int
		MaxUnavailable int `yaml:"maxUnavailable"`
		Selector       selector
		Template       struct {
			Metadata struct{ Annotations, Labels map[string]string }
			Spec     pod
		}
	}
}

type selector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

// policyRule is a rule of a NetworkPolicy. A rule without peers admits all.
type policyRule struct {
	From, To []map[string]any
	Ports    []struct {
		Protocol string
		Port     any
	}
}

type probe struct {
	HTTPGet          struct{ Path, Port, Scheme string } `yaml:"httpGet"`
	PeriodSeconds    int                                 `yaml:"periodSeconds"`
	FailureThreshold int                                 `yaml:"failureThreshold"`
}

type pod struct {
	ServiceAccountName           string `yaml:"serviceAccountName"`
	AutomountServiceAccountToken *bool  `yaml:"automountServiceAccountToken"`
	RestartPolicy                string `yaml:"restartPolicy"`
	SecurityContext              struct {
		RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
		RunAsUser      int                   `yaml:"runAsUser"`
		SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Containers []struct {
		Image           string
		Args            []string
		Env             []envVar
		SecurityContext struct {
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Drop []string }
		} `yaml:"securityContext"`
		StartupProbe   probe `yaml:"startupProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
		ReadinessProbe probe `yaml:"readinessProbe"`
	}
	Volumes []struct {
		Name   string
		Secret struct {
			SecretName string `yaml:"secretName"`
		}
		ConfigMap struct{ Name string } `yaml:"configMap"`
	}
}

type envVar struct {
	Name      string
	ValueFrom struct {
		SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
	} `yaml:"valueFrom"`
}

// required are values that have no default.
const required = "database.existingSecret=db,image.repository=registry.example.com/notifyd"

// render returns the objects that the chart makes of the values, by kind. The second object of a kind has the suffix of
// its name: "ConfigMap-dashboard".
func render(t *testing.T, set ...string) map[string]object {
	t.Helper()
	args := []string{"template", "shop", chart, "--set", required}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	text, err := helm(t, args...)
	if err != nil {
		t.Fatalf("%v: %v", set, err)
	}
	all := make(map[string]object)
	for in := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o object
		err := in.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if suffix := strings.TrimPrefix(o.Metadata.Name, "shop-notifyd"); o.Kind == "Job" {
			all["Job"] = o
		} else if o.Kind != "" {
			all[o.Kind+suffix] = o
		}
	}
}

func TestDeployChart(t *testing.T) {
	t.Parallel()
	if out, err := helm(t, "lint", "--strict", chart, "--set", required); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	all := render(t)
	for _, kind := range []string{"ConfigMap", "Deployment", "Job", "PodDisruptionBudget", "Service", "ServiceAccount"} {
		if _, ok := all[kind]; !ok {
			t.Errorf("there is no %s", kind)
		}
	}
	for _, kind := range []string{"ServiceMonitor", "PrometheusRule", "ConfigMap-dashboard", "NetworkPolicy", "NetworkPolicy-migrate"} {
		if _, ok := all[kind]; ok {
			t.Errorf("there is a %s that nobody asked for", kind)
		}
	}
	// The configuration is one that the program takes, and the probes reach it.
	path := file(t, all["ConfigMap"].Data["config.yaml"])
	if got := commandIn(t, deployEnv(), "check-config", "-c", path); got.code != 0 || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	deployment, job := all["Deployment"].Spec, all["Job"]
	for name, p := range map[string]pod{"deployment": deployment.Template.Spec, "job": job.Spec.Template.Spec} {
		c, s := p.Containers[0], p.SecurityContext
		if !s.RunAsNonRoot || s.RunAsUser == 0 || s.SeccompProfile.Type != "RuntimeDefault" || p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken ||
			c.SecurityContext.AllowPrivilegeEscalation == nil || *c.SecurityContext.AllowPrivilegeEscalation ||
			!c.SecurityContext.ReadOnlyRootFilesystem || !slices.Equal(c.SecurityContext.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("%s: %+v", name, p)
		}
		if c.Env[0].Name != "DATABASE_URL" || c.Env[0].ValueFrom.SecretKeyRef.Name != "db" || c.Env[0].ValueFrom.SecretKeyRef.Key != "url" {
			t.Errorf("%s: %+v", name, c.Env)
		}
	}
	for key, value := range deployment.Selector.MatchLabels {
		if deployment.Template.Metadata.Labels[key] != value {
			t.Errorf("the deployment does not find its pods by %s=%s", key, value)
		}
	}
	if job.Metadata.Annotations["helm.sh/hook"] != "pre-install,pre-upgrade" || job.Spec.Template.Spec.ServiceAccountName != "" || len(job.Spec.Template.Spec.Volumes) > 0 {
		t.Errorf("the job runs before the rest of the chart is there: %+v", job)
	}
	// Its command line is one that the program has.
	args := append(slices.Clone(job.Spec.Template.Spec.Containers[0].Args), "--database-url", testenv.Database(t))
	if got := invoke(t, args...); got.code != 0 {
		t.Errorf("%v: %+v", args, got)
	}
}

func TestDeployChartValues(t *testing.T) {
	t.Parallel()
	all := render(t, "config.database.schema=events", "migrate.existingSecret=owner", "migrate.key=dsn", "migrate.notify=always", "replicaCount=1",
		"serviceMonitor.enabled=true", "image.digest=sha256:"+strings.Repeat("a", 64), "existingConfigSecret.name=whole", "serviceAccount.create=false",
		"env[0].name=SMTP_PASSWORD,env[0].valueFrom.secretKeyRef.name=smtp,env[0].valueFrom.secretKeyRef.key=password")
	for _, kind := range []string{"ConfigMap", "PodDisruptionBudget", "ServiceAccount"} {
		if _, ok := all[kind]; ok {
			t.Errorf("there is a %s", kind)
		}
	}
	if _, ok := all["ServiceMonitor"]; !ok {
		t.Error("there is no ServiceMonitor")
	}
	p, job := all["Deployment"].Spec.Template.Spec, all["Job"].Spec.Template.Spec.Containers[0]
	if p.Volumes[0].Secret.SecretName != "whole" || p.ServiceAccountName != "default" || p.Containers[0].Image != "registry.example.com/notifyd@sha256:"+strings.Repeat("a", 64) ||
		p.Containers[0].Env[1].ValueFrom.SecretKeyRef.Name != "smtp" {
		t.Errorf("%+v", p)
	}
	if !slices.Equal(job.Args, []string{"migrate", "--schema", "events", "--notify", "always"}) || job.Env[0].ValueFrom.SecretKeyRef.Name != "owner" || job.Env[0].ValueFrom.SecretKeyRef.Key != "dsn" {
		t.Errorf("%+v", job)
	}
	first := render(t)["Deployment"].Spec.Template.Metadata.Annotations["checksum/config"]
	if second := render(t, "config.log.level=debug")["Deployment"].Spec.Template.Metadata.Annotations["checksum/config"]; first == "" || first == second {
		t.Errorf("a new configuration starts no new relays: %q, %q", first, second)
	}
	scheme := func(set ...string) [3]string {
		c := render(t, set...)["Deployment"].Spec.Template.Spec.Containers[0]
		return [3]string{c.StartupProbe.HTTPGet.Scheme, c.LivenessProbe.HTTPGet.Scheme, c.ReadinessProbe.HTTPGet.Scheme}
	}
	for set, want := range map[string]string{"replicaCount=2": "HTTP", "service.https=true": "HTTPS", "config.admin.tls.cert_file=tls.crt": "HTTPS"} {
		if got := scheme(set); got != [3]string{want, want, want} {
			t.Errorf("%s: the probes ask by %v", set, got)
		}
	}
	monitor, err := helm(t, "template", "shop", chart, "--set", required+",serviceMonitor.enabled=true,service.https=true",
		"--set", "serviceMonitor.tokenSecret.name=admin,serviceMonitor.tlsConfig.serverName=relay", "--show-only", "templates/servicemonitor.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"scheme: https\n", "serverName: relay\n", "name: \"admin\"\n          key: \"token\"\n"} {
		if !strings.Contains(monitor, want) {
			t.Errorf("the ServiceMonitor lacks %q:\n%s", want, monitor)
		}
	}
	if _, ok := render(t, "migrate.enabled=false")["Job"]; ok {
		t.Error("there is a job that nobody wants")
	}
	for set, want := range map[string]string{
		"database.existingSecret=": "/database/existingSecret", "replicas=3": "replicas", "migrate.notify=loud": "/migrate/notify", "image.digest=latest": "/image/digest",
		"image.repository=": "image.repository is empty: build the image with deploy/Dockerfile", "image.repository=null": "image.repository is empty",
		"networkPolicy.enabled=true,serviceMonitor.enabled=true": "networkPolicy.from is empty although serviceMonitor.enabled is set", "networkPolicy.from[0].pods=x": "/networkPolicy/from",
		"migrate.mode=queue,migrate.partitions=daily": "leave migrate.mode empty", "migrate.mode=log": "/migrate/mode", "migrate.grantTo.owner=x": "/migrate/grantTo",
		"config.destinations.audit.type=logg": "/config/destinations/audit", "config.relay.lock_budgett=1s": "/config/relay", "config.destinations.audit.max_attempts=x": "/config/destinations/audit",
		"networkPolicy.database.port=0": "/networkPolicy/database/port", "prometheusRule.runbookBase=git.example.com": "/prometheusRule/runbookBase",
	} {
		if _, err := helm(t, "template", "shop", chart, "--set", required, "--set", set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a complaint about %s", set, err, want)
		}
	}
}

// TestDeployChartStream: the job of the chart makes a partitioned stream whose two roles can work.
func TestDeployChartStream(t *testing.T) {
	t.Parallel()
	owner := testenv.Database(t)
	writer, asWriter := login(t, owner, "writer")
	relay, asRelay := login(t, owner, "relay")
	values := fmt.Sprintf("{migrate: {mode: stream, partitions: daily, serializeWriters: \"on\", grantTo: {writer: %q, relay: %q}}}", writer, relay)
	text, err := helm(t, "template", "shop", chart, "--set", required, "--show-only", "templates/migrate.yaml", "--values", file(t, values))
	if err != nil {
		t.Fatal(err)
	}
	var job object
	if err := yaml.Unmarshal([]byte(text), &job); err != nil {
		t.Fatal(err)
	}
	args := job.Spec.Template.Spec.Containers[0].Args
	for range 2 { // each upgrade runs it again
		got := commandIn(t, vars{"DATABASE_URL": owner}, args...)
		if got.code != 0 || !strings.HasSuffix(got.stdout, ", mode stream, partitions daily, writers serialized\n") {
			t.Fatalf("%q: %+v", args, got)
		}
	}
	execute(t, asWriter, "INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '{}')")
	config := file(t, fmt.Sprintf("version: 1\ndatabase: {url: %q}\nretention: {partitions: daily}\ndestinations: {audit: {type: log}}\nroutes: [{match: \"*\", to: audit}]\n", asRelay))
	if got := invoke(t, "run", "--until-idle", "-c", config); got.code != 0 || !strings.Contains(got.stdout+got.stderr, "order.placed") {
		t.Errorf("%+v", got)
	}
}

// TestDeployChartMonitoring: the rules and the dashboard in the cluster are those of deploy/.
func TestDeployChartMonitoring(t *testing.T) {
	t.Parallel()
	all := render(t, "prometheusRule.enabled=true", "prometheusRule.labels.release=prom", "dashboard.enabled=true", "dashboard.annotations.grafana_folder=Events")
	var want struct{ Groups any }
	source := testenv.ReadFile(t, deployDir+"/prometheus/rules.yaml")
	if err := yaml.Unmarshal([]byte(source), &want); err != nil {
		t.Fatal(err)
	}
	rule := all["PrometheusRule"]
	if !reflect.DeepEqual(rule.Spec.Groups, want.Groups) || want.Groups == nil || rule.Metadata.Labels["release"] != "prom" {
		t.Errorf("the rules of the cluster are %+v, want %v", rule, want.Groups)
	}
	const base = "https://git.example.com/notifyd/blob/main/"
	linked := render(t, "prometheusRule.enabled=true", "prometheusRule.runbookBase="+base)["PrometheusRule"]
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(source, "runbook: ", "runbook_url: "+base)), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(linked.Spec.Groups, want.Groups) {
		t.Errorf("the rules with links are %+v, want %v", linked, want.Groups)
	}
	dashboard := all["ConfigMap-dashboard"]
	if got, want := dashboard.Data["notifyd.json"], testenv.ReadFile(t, deployDir+"/grafana/notifyd.json"); strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("the dashboard of the cluster has %d bytes, the file %d", len(got), len(want))
	}
	if dashboard.Metadata.Labels["grafana_dashboard"] != "1" || dashboard.Metadata.Annotations["grafana_folder"] != "Events" {
		t.Errorf("Grafana does not find the dashboard: %+v", dashboard.Metadata)
	}
}

// TestDeployChartNetworkPolicy: both policies select the pods that they are about, and admit what is named.
func TestDeployChartNetworkPolicy(t *testing.T) {
	t.Parallel()
	const prometheus, destination, database = "monitoring", "198.51.100.0/24", "203.0.113.7/32"
	all := render(t, "networkPolicy.enabled=true", "networkPolicy.from[0].podSelector.matchLabels.app="+prometheus, "networkPolicy.database.port=6432",
		"networkPolicy.database.to[0].ipBlock.cidr="+database, "networkPolicy.egress[0].to[0].ipBlock.cidr="+destination, "networkPolicy.egress[0].ports[0].port=443")
	relay, job := all["NetworkPolicy"], all["NetworkPolicy-migrate"]
	for name, c := range map[string]struct {
		policy object
		pod    map[string]string
		egress int
	}{
		"relay": {relay, all["Deployment"].Spec.Template.Metadata.Labels, 3},
		"job":   {job, all["Job"].Spec.Template.Metadata.Labels, 2},
	} {
		spec := c.policy.Spec
		if !maps.Equal(spec.PodSelector.MatchLabels, c.pod) || len(c.pod) == 0 || !slices.Equal(spec.PolicyTypes, []string{"Ingress", "Egress"}) || len(spec.Egress) != c.egress {
			t.Fatalf("%s: %+v, the pod has %v", name, spec, c.pod)
		}
		dns, db := spec.Egress[0], spec.Egress[1]
		if len(dns.Ports) != 2 || dns.Ports[0].Port != 53 || dns.Ports[0].Protocol != "UDP" || dns.Ports[1].Port != 53 || dns.Ports[1].Protocol != "TCP" {
			t.Errorf("%s: no name can be looked up: %+v", name, dns)
		}
		if len(db.Ports) != 1 || db.Ports[0].Port != 6432 || fmt.Sprint(db.To) != "[map[ipBlock:map[cidr:"+database+"]]]" {
			t.Errorf("%s: the database is out of reach: %+v", name, db)
		}
	}
	if in := relay.Spec.Ingress; len(in) != 1 || len(in[0].From) != 1 || len(in[0].Ports) != 1 || in[0].Ports[0].Port != "admin" || !strings.Contains(fmt.Sprint(in[0].From), prometheus) {
		t.Errorf("Prometheus may not connect: %+v", in)
	}
	if out := relay.Spec.Egress[2]; out.Ports[0].Port != 443 || !strings.Contains(fmt.Sprint(out.To), destination) {
		t.Errorf("the destination is out of reach: %+v", out)
	}
	// The policy of the job exists before the job, which other policies may stop.
	if len(job.Spec.Ingress) != 0 || job.Metadata.Annotations["helm.sh/hook"] != all["Job"].Metadata.Annotations["helm.sh/hook"] || job.Metadata.Annotations["helm.sh/hook-weight"] != "-1" {
		t.Errorf("%+v", job)
	}
	closed := render(t, "networkPolicy.enabled=true", "migrate.enabled=false")
	if p := closed["NetworkPolicy"]; len(p.Spec.Ingress) != 0 || len(p.Spec.Egress) != 2 || p.Spec.Egress[1].Ports[0].Port != 5432 {
		t.Errorf("%+v", p)
	}
	if _, ok := closed["NetworkPolicy-migrate"]; ok {
		t.Error("there is a policy for a job that nobody wants")
	}
}

// TestDeployChartProbes runs the configuration of the chart while the database is down: a relay that waits for it is
// started and live, so no probe restarts it.
func TestDeployChartProbes(t *testing.T) {
	t.Parallel()
	all := render(t)
	c := all["Deployment"].Spec.Template.Spec.Containers[0]
	if bound := c.StartupProbe.PeriodSeconds * c.StartupProbe.FailureThreshold; bound < 30 || bound > 300 {
		t.Errorf("a relay may take %d s to start", bound)
	}
	config := strings.Replace(all["ConfigMap"].Data["config.yaml"], "0.0.0.0:9470", "127.0.0.1:0", 1)
	d := startDaemon(t, vars{"DATABASE_URL": "postgres://app@127.0.0.1:1/app?sslmode=disable"}, "run", "--config", file(t, config))
	d.stderr.await(t, `"database does not answer"`)
	address := regexp.MustCompile(`"msg":"admin server listening","listen":"([^"]+)"`).FindStringSubmatch(d.stderr.text())
	if address == nil {
		t.Fatalf("no admin server:\n%s", d.stderr.text())
	}
	for name, check := range map[string]struct {
		probe
		want int
	}{"startup": {c.StartupProbe, http.StatusOK}, "liveness": {c.LivenessProbe, http.StatusOK}, "readiness": {c.ReadinessProbe, http.StatusServiceUnavailable}} {
		if code, body := fetch(t, "http://"+address[1]+check.HTTPGet.Path); code != check.want || check.HTTPGet.Port != "admin" {
			t.Errorf("the %s probe gets %d from %+v, want %d: %s", name, code, check.HTTPGet, check.want, body)
		}
	}
}

// TestDeployChartCommand renders the chart as docs/deploy.md installs it.
func TestDeployChartCommand(t *testing.T) {
	t.Parallel()
	values := file(t, "replicaCount: 3\n")
	ran := 0
	for _, st := range steps(testenv.ReadFile(t, root+"docs/deploy.md")) {
		line, isHelm := strings.CutPrefix(st.line(), "helm install ")
		if !isHelm || st.language != "sh" {
			continue
		}
		ran++
		args := strings.Fields(strings.NewReplacer("deploy/helm/notifyd", chart, "my-values.yaml", values).Replace(line))
		out, err := helm(t, append([]string{"template"}, args...)...)
		for _, want := range []string{"replicas: 3", "name: \"notifyd-db\"\n                  key: \"url\"", "name: \"notifyd-owner\"\n                  key: \"url\"", "kind: Job", "image: \"registry.example.com/notifyd:0.1.0\""} {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%s does not make %q, %v", st.text, want, err)
			}
		}
	}
	if ran != 1 {
		t.Errorf("%d commands", ran)
	}
}
