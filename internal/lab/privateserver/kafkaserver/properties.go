package kafkaserver

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// The names of the listeners.
const (
	listenerPlain      = "PLAIN"
	listenerController = "CONTROLLER"
	listenerSecure     = "SECURE"
)

// clusterID returns a new id as Kafka writes it: a random UUID in 22 letters. The tool
// that formats the directory would take a leading dash for an option.
func clusterID() string {
	var id [16]byte
	for {
		_, _ = rand.Read(id[:]) // cannot fail
		if text := base64.RawURLEncoding.EncodeToString(id[:]); text[0] != '-' {
			return text
		}
	}
}

// properties returns server.properties: one node with both roles, topics without
// replicas, and no waiting for other nodes.
func (k *Server) properties(s *privateserver.Server) map[string]string {
	listeners := map[string]int{listenerPlain: s.Port(), listenerController: k.controller}
	protocols := map[string]string{listenerPlain: "PLAINTEXT", listenerController: "PLAINTEXT"}
	if p := k.cfg.Secure.protocol(); p != "" {
		listeners[listenerSecure] = k.secure
		protocols[listenerSecure] = p
	}

	var addrs, advertised, security []string
	for _, name := range slices.Sorted(maps.Keys(listeners)) {
		addr := name + "://" + privateserver.Local(listeners[name])
		addrs = append(addrs, addr)
		if name == listenerSecure && k.cfg.Secure.Advertised != "" {
			addr = name + "://" + k.cfg.Secure.Advertised
		}
		if name != listenerController {
			advertised = append(advertised, addr)
		}
		security = append(security, name+":"+protocols[name])
	}

	all := map[string]string{
		"process.roles":                                    "broker,controller",
		"node.id":                                          strconv.Itoa(nodeID),
		"listeners":                                        strings.Join(addrs, ","),
		"advertised.listeners":                             strings.Join(advertised, ","),
		"listener.security.protocol.map":                   strings.Join(security, ","),
		"inter.broker.listener.name":                       listenerPlain,
		"controller.listener.names":                        listenerController,
		"controller.quorum.bootstrap.servers":              privateserver.Local(k.controller),
		"log.dirs":                                         filepath.Join(s.Dir(), "data"),
		"auto.create.topics.enable":                        "false",
		"num.partitions":                                   "1",
		"offsets.topic.num.partitions":                     "1",
		"offsets.topic.replication.factor":                 "1",
		"transaction.state.log.num.partitions":             "1",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"share.coordinator.state.topic.num.partitions":     "1",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"group.initial.rebalance.delay.ms":                 "0",
		// A killed broker can register again when the controller has forgotten it. The
		// default of nine seconds is for brokers on other machines. Heartbeats are as
		// frequent as the shorter time needs: a broker on a busy machine that is late
		// with one of them has no leaders for a moment.
		"broker.session.timeout.ms":    "3000",
		"broker.heartbeat.interval.ms": "300",
	}

	k.cfg.Secure.addTo(all)
	maps.Copy(all, k.cfg.Properties)
	return all
}

// format writes server.properties and creates the data directory.
func (k *Server) format(ctx context.Context, s *privateserver.Server) error {
	var text strings.Builder
	properties := k.properties(s)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		// A backslash begins an escape in this format.
		fmt.Fprintf(&text, "%s=%s\n", name, strings.ReplaceAll(properties[name], `\`, `\\`))
	}

	path, err := s.WriteFile(propertiesFile, []byte(text.String()))
	if err != nil {
		return err
	}

	args := []string{
		"-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", k.cfg.Programs.classPath(),
		"kafka.tools.StorageTool", "format", "--standalone", "-t", k.cluster, "-c", path,
	}
	for _, name := range slices.Sorted(maps.Keys(k.cfg.Secure.Users)) {
		for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
			args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, name, k.cfg.Secure.Users[name]))
		}
	}

	out, err := s.Command(ctx, k.cfg.Programs.Java, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("format the directory of Kafka: %w:\n%s",
			errors.Join(err, context.Cause(ctx)), privateserver.Tail(out))
	}

	return nil
}
