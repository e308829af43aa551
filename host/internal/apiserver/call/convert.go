package call

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Redacted replaces values that are never shown.
const Redacted = "[REDACTED]"

// Namespaced is a request that names an object in a namespace.
type Namespaced interface {
	GetNamespace() string
	GetId() string
}

// NamespaceOr returns the namespace of a request, or the default.
func NamespaceOr(namespace string) string {
	if namespace == "" {
		return claim.DefaultNamespace
	}
	return namespace
}

// Qualified returns an id as messages show it.
func Qualified(namespace, id string) string {
	return claim.VolumeRef{Namespace: namespace, ID: id}.String()
}

// Time returns nil for the zero time.
func Time(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// secretWords are parts of the names of mount flags whose values are secrets, such as password or secretfile.
var secretWords = []string{"pass", "secret", "cred", "token", "key"}

// Redact hides the values of mount flags that are secrets, and what follows them: a value may contain commas.
func Redact(o *hostv1.MountOptions) {
	for n, flag := range o.GetMountFlags() {
		var shown []string
		for part := range strings.SplitSeq(flag, ",") {
			name, _, hasValue := strings.Cut(part, "=")
			if hasValue && slices.ContainsFunc(secretWords, func(word string) bool {
				return strings.Contains(strings.ToLower(name), word)
			}) {
				shown = append(shown, name+"="+Redacted)
				break
			}
			shown = append(shown, part)
		}
		o.MountFlags[n] = strings.Join(shown, ",")
	}
}

// ShownClaim shows a claim.
func ShownClaim(c claim.Claim) *hostv1.Claim {
	return &hostv1.Claim{
		Volume: c.Volume.ID, Namespace: c.Volume.Namespace, Workload: c.Workload.ID, Node: c.Node,
		Mode: string(c.Mode), AccessMode: string(c.AccessMode), AttachmentMode: string(c.AttachmentMode),
		State: string(c.State), Index: c.Index,
		TakenAt: Time(c.TakenAt), ModifiedAt: Time(c.ModifiedAt), ForcedBy: c.ForcedBy,
	}
}

// Each converts the elements of a list.
func Each[From, To any](list []From, convert func(From) To) (out []To) {
	for _, one := range list {
		out = append(out, convert(one))
	}
	return out
}

// NotEmpty returns a copy of a list, or nil if it is empty, as the list would read back from a record.
func NotEmpty[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return slices.Clone(list)
}

// AllOr returns the namespace that is listed; empty: all.
func AllOr(namespace string) string {
	if namespace == "*" {
		return ""
	}
	return namespace
}

// NodeStatus returns a node's status. A host in no cluster has none: it is ready.
func NodeStatus(n claim.Node) claim.NodeStatus { return cmp.Or(n.Status, claim.NodeReady) }
