// Program pubsub is a Pub/Sub for tests: the fake of Google's own client library, behind
// the part of the REST API that publishers use. What the fake does not check and the
// documentation forbids is refused here.
//
// It prints its URL, and ends with its standard input, and so with the test that
// started it.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const (
	maxMessages   = 1000
	maxBytes      = 10 << 20
	maxAttributes = 100
	maxName       = 256
	maxValue      = 1024
	// refuseLabel is a label of a topic that refuses messages with its value in their data,
	// as a topic with a schema does.
	refuseLabel = "refuse"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it asks no name server
	if err != nil {
		return err
	}

	fake := pstest.NewServer()
	defer func() { _ = fake.Close() }()

	server := &http.Server{Handler: handler(fake), ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		_ = server.Close()
	}()

	if _, err := fmt.Fprintf(out, "http://%s\n", listener.Addr()); err != nil {
		return err
	}

	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// handler serves /v1/projects/PROJECT/topics/TOPIC, with a verb after a colon.
func handler(fake *pstest.Server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/projects/{project}/topics/{topic}", func(w http.ResponseWriter, r *http.Request) {
		name, verb, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), ":")
		answer, err := call(r, fake, name, verb)
		if err != nil {
			refuse(w, err)
			return
		}

		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer) //nolint:gosec // JSON, and for tests
	})
	return mux
}

func call(r *http.Request, fake *pstest.Server, name, verb string) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}

	ctx := r.Context()
	topics := &fake.GServer

	switch r.Method + " " + verb {
	case "PUT ":
		topic := &pubsubpb.Topic{Name: name}
		if err := read(body, topic); err != nil {
			return nil, err
		}
		topic.Name = name
		return write(topics.CreateTopic(ctx, topic))
	case "GET ":
		return write(topics.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: name}))
	case "DELETE ":
		return write(topics.DeleteTopic(ctx, &pubsubpb.DeleteTopicRequest{Topic: name}))
	case "POST publish":
		in := &pubsubpb.PublishRequest{}
		if err := read(body, in); err != nil {
			return nil, err
		}
		in.Topic = name

		if topic, err := topics.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: name}); err == nil {
			if err := check(in, topic.Labels[refuseLabel]); err != nil {
				return nil, err
			}
		}
		return write(topics.Publish(ctx, in))
	case "GET messages": // of the test, not of Pub/Sub: all that were published, in their order
		return messages(fake, name)
	default:
		return nil, status.Error(codes.Unimplemented, r.Method+" "+verb)
	}
}

func read(body []byte, into proto.Message) error {
	if len(body) == 0 {
		return nil
	}
	if err := protojson.Unmarshal(body, into); err != nil {
		return status.Errorf(codes.InvalidArgument, "Invalid JSON payload received. %v", err)
	}
	return nil
}

func write[M proto.Message](m M, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return protojson.Marshal(m)
}

func messages(fake *pstest.Server, topic string) ([]byte, error) {
	all := []json.RawMessage{}
	for _, m := range fake.Messages() {
		if m.Topic != topic {
			continue
		}
		text, err := protojson.Marshal(&pubsubpb.PubsubMessage{
			Data:        m.Data,
			Attributes:  m.Attributes,
			OrderingKey: m.OrderingKey,
			MessageId:   m.ID,
		})
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return json.Marshal(map[string]any{"messages": all})
}

// check returns an error for requests that the documentation of Pub/Sub forbids.
func check(in *pubsubpb.PublishRequest, refused string) error {
	bad := func(format string, args ...any) error { return status.Errorf(codes.InvalidArgument, format, args...) }
	switch {
	case len(in.Messages) == 0 || len(in.Messages) > maxMessages:
		return bad("The request has %d messages: it must have 1 to %d.", len(in.Messages), maxMessages)
	case proto.Size(in) > maxBytes:
		return bad("Request payload size exceeds the limit: %d bytes.", maxBytes)
	}

	for _, m := range in.Messages {
		switch {
		case m.OrderingKey != in.Messages[0].OrderingKey:
			return bad("In a single publish request, all messages must have no ordering key " +
				"or they must all have the same ordering key.")
		case len(m.OrderingKey) > maxValue:
			return bad("The ordering key is too long.")
		case len(m.Data) == 0 && len(m.Attributes) == 0:
			return bad("One or more messages in the publish request is empty.")
		case len(m.Attributes) > maxAttributes:
			return bad("A message has too many attributes.")
		case refused != "" && strings.Contains(string(m.Data), refused):
			return bad("Invalid data in message: Message failed schema validation.")
		}

		for name, value := range m.Attributes {
			isLong := len(name) > maxName || len(value) > maxValue
			if name == "" || isLong || strings.HasPrefix(name, "goog") {
				return bad("The attribute %.20q is not valid.", name)
			}
		}
	}
	return nil
}

// refuse answers in the form of Google's APIs.
func refuse(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	httpCode := http.StatusInternalServerError
	name := "INTERNAL"
	switch s.Code() {
	case codes.InvalidArgument:
		httpCode = http.StatusBadRequest
		name = "INVALID_ARGUMENT"
	case codes.NotFound:
		httpCode = http.StatusNotFound
		name = "NOT_FOUND"
	case codes.AlreadyExists:
		httpCode = http.StatusConflict
		name = "ALREADY_EXISTS"
	case codes.Unimplemented:
		httpCode = http.StatusNotImplemented
		name = "UNIMPLEMENTED"
	default: // nothing else comes of the fake
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(httpCode)
	answer := map[string]any{"code": httpCode, "message": s.Message(), "status": name}
	_ = json.NewEncoder(w).Encode(map[string]any{"error": answer})
}
