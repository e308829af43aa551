package envoy

import (
	"encoding/json"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	"google.golang.org/protobuf/proto"
)

// addStatic adds the clusters and listeners that the operator wrote.
func addStatic(b *bootstrapv3.Bootstrap, p Proxy) error {
	clusters, err := fragments(p, keyStaticClusters, func() *clusterv3.Cluster { return &clusterv3.Cluster{} })
	if err != nil {
		return err
	}
	listeners, err := fragments(p, keyStaticListeners, func() *listenerv3.Listener { return &listenerv3.Listener{} })
	if err != nil {
		return err
	}
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, clusters...)
	b.StaticResources.Listeners = append(b.StaticResources.Listeners, listeners...)
	return nil
}

// addTracing adds the tracing that the operator wrote.
func addTracing(b *bootstrapv3.Bootstrap, p Proxy) error {
	text, err := settings(p.Config).text(keyTracing)
	if err != nil || text == "" {
		return err
	}
	tracing := &tracev3.Tracing{}
	b.Tracing = tracing //nolint:staticcheck // SA1019: Consul's key is about this field
	return fragment(keyTracing, []byte(text), tracing)
}

// fragments reads the messages that key has: objects, with commas between them.
func fragments[M proto.Message](p Proxy, key string, newMessage func() M) ([]M, error) {
	text, err := settings(p.Config).text(key)
	if err != nil || text == "" {
		return nil, err
	}
	var parts []json.RawMessage
	if err := json.Unmarshal([]byte("["+text+"]"), &parts); err != nil {
		return nil, invalid(key, "want JSON objects with commas between them: %v", err)
	}
	messages := make([]M, len(parts))
	for i, part := range parts {
		messages[i] = newMessage()
		if err := fragment(key, part, messages[i]); err != nil {
			return nil, err
		}
	}
	return messages, nil
}

// fragment reads one message that an operator wrote and checks it.
func fragment(key string, text []byte, m proto.Message) error {
	if err := unmarshal(text, m); err != nil {
		return invalid(key, "want the JSON of %s: %v", m.ProtoReflect().Descriptor().FullName(), err)
	}
	if err := validate(m); err != nil {
		return invalid(key, "%v", err)
	}
	return nil
}
