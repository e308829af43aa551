package xds

import (
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// update applies an answer to have.
func update[M proto.Message](have map[string]M, answer *discoveryv3.DeltaDiscoveryResponse, newMessage func() M) error {
	for _, r := range answer.GetResources() {
		m := newMessage()
		if err := r.GetResource().UnmarshalTo(m); err != nil {
			return fmt.Errorf("received %q: %w", r.GetName(), err)
		}
		have[r.GetName()] = m
	}
	for _, name := range answer.GetRemovedResources() {
		delete(have, name)
	}
	return nil
}
