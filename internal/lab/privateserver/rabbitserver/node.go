package rabbitserver

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// answerWithin bounds a connection that asks whether the node is ready.
const answerWithin = 2 * time.Second

// script runs epmd, $1 on port $2, in the process group of the node, $3, so that both end
// together. Otherwise the node would leave an epmd daemon behind.
const script = `"$1" -port "$2" -address 127.0.0.1 & exec "$3"`

func (r *Server) command(*privateserver.Server) (path string, args []string, err error) {
	return "/bin/sh", []string{"-c", script, "sh", r.programs.epmd, strconv.Itoa(r.epmd), r.programs.server}, nil
}

// environment makes every program use this node, even if the developer's environment
// names another one.
func (r *Server) environment(s *privateserver.Server) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "RABBITMQ_") || strings.HasPrefix(kv, "ERL_") || strings.HasPrefix(kv, "HOME=")
	})

	home := filepath.Join(s.Dir(), homeDir)
	const onLoopback = "-kernel inet_dist_use_interface {127,0,0,1}"
	return append(env,
		"HOME="+home, // of the cookie
		"RABBITMQ_NODENAME="+nodeName(s),
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT="+strconv.Itoa(s.Port()),
		"RABBITMQ_DIST_PORT="+strconv.Itoa(r.dist),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+onLoopback,
		"RABBITMQ_CTL_ERL_ARGS="+onLoopback,
		"RABBITMQ_MNESIA_BASE="+filepath.Join(home, "data"),
		"RABBITMQ_LOG_BASE="+filepath.Join(home, "log"),
		"RABBITMQ_LOGS=-", // standard output
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(home, "plugins"),
		"RABBITMQ_PID_FILE="+filepath.Join(home, "pid"),
		"RABBITMQ_CONFIG_FILE="+filepath.Join(home, "rabbit"),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"ERL_CRASH_DUMP_SECONDS=0", // none
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_EPMD_PORT="+strconv.Itoa(r.epmd),
		// Makes the start script exec the node instead of being its parent, so that signals reach the node. The variable
		// has no other effect: RabbitMQ detects systemd by NOTIFY_SOCKET.
		"RUNNING_UNDER_SYSTEMD=true",
		"NOTIFY_SOCKET=",
	)
}

// nodeName is the Erlang name of the node, unique on the machine.
func nodeName(s *privateserver.Server) string {
	return "notifyd" + strconv.Itoa(s.Port()) + "@localhost"
}

// ask connects once. It returns an error if another node has the port.
func ask(_ context.Context, s *privateserver.Server) error {
	conn, err := amqp.DialConfig(vhostURL(s.Addr(), ""), amqp.Config{Dial: amqp.DefaultDial(answerWithin)})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the answer is complete

	name, _, _ := strings.Cut(nodeName(s), "@")
	if got, _ := conn.Properties["cluster_name"].(string); !strings.HasPrefix(got, name+"@") {
		return fmt.Errorf("another node, %q, has the port", got)
	}
	return nil
}

// Ctl runs rabbitmqctl on the node and returns its output. It takes about a second.
func (r *Server) Ctl(ctx context.Context, args ...string) (string, error) {
	cmd := r.Command(ctx, r.programs.ctl, append([]string{"--quiet"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr

	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("rabbitmqctl %s: %w: %s", args[0], err, bytes.TrimSpace(append(stdout.Bytes(), stderr.Bytes()...)))
	}

	return strings.TrimSpace(stdout.String()), nil
}

//go:embed delaying.erl
var delaying []byte

// ErrOtherVersion means that the node cannot load the exchange type: its interface for types of exchanges is not that of
// RabbitMQ 3.10 to 3.12.
var ErrOtherVersion = errors.New("the interface for types of exchanges is that of RabbitMQ 3.10 to 3.12, and the broker has another version")

// DelayMessages adds the exchange type x-delayed-message to the running node, until the node ends.
func (r *Server) DelayMessages(ctx context.Context) error {
	source, err := r.WriteFile("delaying.erl", delaying)
	if err != nil {
		return err
	}

	loaded, err := r.Ctl(ctx, "eval", fmt.Sprintf(`case compile:file(%q, [binary]) of
		{ok, delaying, Code} -> {module, _} = code:load_binary(delaying, "", Code), delaying:register();
		error -> other_version end.`, source))
	if err != nil {
		return err
	}
	if strings.Contains(loaded, "other_version") {
		return ErrOtherVersion
	}
	return nil
}
