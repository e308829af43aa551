package nomad

import (
	"strings"

	"github.com/google/uuid"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// space is the namespace of the name-based UUIDs (RFC 9562, section 5.5) below. With another one all ids change.
var space = uuid.MustParse("3c1f5a52-6d0b-4f6e-9a0e-7d7b4f1c2a11")

// nodeID is the id of a node, which has only a name here. It is the same on every host and in every version.
func nodeID(name string) string { return id("node", name) }

// allocID is the id of the allocation that a claim is shown as: a workload on a node.
func allocID(c *hostv1.Claim) string {
	return id("alloc", c.GetNamespace(), c.GetWorkload(), c.GetNode())
}

func id(parts ...string) string {
	return uuid.NewSHA1(space, []byte(strings.Join(parts, "\x00"))).String()
}
