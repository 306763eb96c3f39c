package kafkaserver

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/internal/privateserver"
)

const (
	// nodeID is that of the only node.
	nodeID = 1
	// propertiesFile is its configuration, in the directory of the server.
	propertiesFile = "server.properties"
)

// Config describes a server. The zero value is a small one without any security.
type Config struct {
	// Programs are what to run; the zero value is what [Find] finds.
	Programs Programs
	// Properties are further lines of server.properties, or replace some of ours.
	Properties map[string]string
	// Secure opens a second listener for clients; see [Server.SecureAddr].
	Secure Secure
	// Tuned runs the server as one in production, with the JVM's own compiler and
	// collector and a heap of 1 GiB. Otherwise it has 256 MiB, and starts faster.
	Tuned bool
}

// Secure is how clients are to reach the second listener. The first one stays
// open to everybody, whose name is then User:ANONYMOUS.
type Secure struct {
	// Users are names and passwords, for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
	// OAUTHBEARER takes unsigned tokens of anybody. Nil is a listener without SASL.
	Users map[string]string
	// KeyStore is a PEM file with the key and the certificate chain of the server,
	// "" for a listener without TLS.
	KeyStore string
	// TrustStore is a PEM file with the authorities of clients' certificates,
	// which are asked for then. "" asks for none.
	TrustStore string
}

// protocol returns Kafka's word for it, "" for no second listener.
func (s Secure) protocol() string {
	switch {
	case s.Users != nil && s.KeyStore != "":
		return "SASL_SSL"
	case s.Users != nil:
		return "SASL_PLAINTEXT"
	case s.KeyStore != "":
		return "SSL"
	default:
		return ""
	}
}

// Server is a running private Kafka.
type Server struct {
	*privateserver.Server

	cfg                Config
	cluster            string // id
	controller, secure int    // ports, fixed once Start has returned
}

// Start makes a new server in a temporary directory and returns once it takes
// part in its cluster of one. ctx bounds the start, not the life of the server,
// which the caller ends by Stop.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Programs == (Programs{}) {
		var err error
		if cfg.Programs, err = Find(); err != nil {
			return nil, err
		}
	}
	k := &Server{cfg: cfg, cluster: clusterID()}
	var err error
	k.Server, err = privateserver.Start(ctx, privateserver.Program{
		Name:      "Kafka",
		MorePorts: []*int{&k.controller, &k.secure},
		Create:    k.format,
		Command: func(s *privateserver.Server) (string, []string, error) {
			return cfg.Programs.Java, append(cfg.flags(), "-cp", cfg.Programs.classPath(), "kafka.Kafka", filepath.Join(s.Dir(), propertiesFile)), nil
		},
		Ask: k.ask,
	})
	if err != nil {
		return nil, err
	}
	return k, nil
}

// flags of the JVM. The first compiler alone and the simplest collector start in
// half the time and use a third of the memory.
func (c Config) flags() []string {
	if c.Tuned {
		return []string{"-Xms1g", "-Xmx1g"}
	}
	return []string{"-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
}

// ask looks whether the node takes part in the cluster that we have formatted:
// another server may sit on a port that ours did not get. A broker is listed once
// the controller lets it serve.
func (k *Server) ask(ctx context.Context, s *privateserver.Server) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Addr()), kgo.RequestRetries(0))
	if err != nil {
		return err
	}
	defer client.Close()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := req.RequestWith(ctx, client)
	switch {
	case err != nil:
		return err
	case resp.ClusterID == nil || *resp.ClusterID != k.cluster:
		return errors.New("another cluster has the port")
	case len(resp.Brokers) != 1 || resp.Brokers[0].NodeID != nodeID:
		return errors.New("the broker does not serve yet")
	default:
		return nil
	}
}

// SecureAddr returns host and port of the listener that [Config.Secure] asks for.
// Addr returns those of the one that is open to everybody.
func (k *Server) SecureAddr() string { return privateserver.Local(k.secure) }

// classPath names all jars; java itself expands the star.
func (p Programs) classPath() string { return filepath.Join(p.Lib, "*") }
