package nomad

import (
	"context"
	"net/http"
	"slices"
	"strings"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// detachVolume releases the claims of a volume on a node whose workloads are gone. As in Nomad, one that is in use
// there is not detached.
func (s *server) detachVolume(ctx context.Context, q query, r *http.Request) (answer, error) {
	id, given := r.PathValue("id"), r.URL.Query().Get("node")
	if given == "" {
		return answer{}, badRequest("node is missing: the node to detach the volume from")
	}
	res, err := s.api.Volumes.ExplainVolume(ctx, &hostv1.ExplainVolumeRequest{Namespace: q.namespace, Id: id})
	if err != nil {
		return answer{}, err
	}
	var holders []string
	for _, c := range res.GetClaims() {
		holders = append(holders, c.GetClaim().GetNode())
	}
	name, err := nodeNamed(given, holders)
	if err != nil {
		return answer{}, err
	}
	for _, c := range res.GetClaims() {
		if c := c.GetClaim(); c.GetNode() == name && c.GetState() == stateTaken && inUse(res, c) {
			return answer{}, &statusError{
				code: http.StatusInternalServerError,
				text: "volume in use: " + id + " is used by workload " + c.GetWorkload() + " on node " + name +
					": stop that first, or let Pannier stop it: pannier volume detach " + id + " " + name,
			}
		}
	}
	done, err := s.api.Volumes.DetachVolume(ctx, &hostv1.DetachVolumeRequest{Namespace: q.namespace, Id: id, Node: name})
	if err != nil {
		return answer{}, err
	}
	for _, c := range done.GetClaims() {
		if !c.GetReleased() {
			return answer{}, &statusError{code: http.StatusInternalServerError, text: c.GetMessage()}
		}
	}
	return answer{}, nil
}

// inUse reports whether a claim's workload may run: its node is up.
func inUse(e *hostv1.ExplainVolumeResponse, c *hostv1.Claim) bool {
	return slices.ContainsFunc(e.GetClaims(), func(x *hostv1.ExplainedClaim) bool {
		return x.GetClaim() == c && x.GetNodeStatus() == nodeReady
	})
}

// nodeReady is the status of a node that answers.
const nodeReady = "ready"

// nodeNamed finds the one of a volume's holders that a client means by its name, its id, or the beginning of its id.
//
// Nomad's command line takes an argument for the beginning of an id, and cuts it to an even number of characters other
// than hyphens: "n10" arrives as "n1". So a name counts only if no other one becomes the same text.
func nodeNamed(given string, holders []string) (string, error) {
	slices.Sort(holders)
	holders = slices.Compact(holders)
	var named, begun []string
	for _, name := range holders {
		switch {
		case nodeID(name) == given:
			return name, nil
		case name == given || cut(name) == given:
			named = append(named, name)
		case strings.HasPrefix(nodeID(name), given):
			begun = append(begun, name)
		}
	}
	switch found := slices.Concat(named, begun); len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", notFound("the volume has no claims on a node %q", given)
	default:
		var ids []string
		for _, name := range found {
			ids = append(ids, name+" is "+nodeID(name))
		}
		return "", badRequest("node %q may be any of several; give an id: %s", given, strings.Join(ids, ", "))
	}
}

// cut is what Nomad's command line makes of the name of a node.
func cut(name string) string {
	if (len(name)-strings.Count(name, "-"))%2 == 0 {
		return name
	}
	return name[:len(name)-1]
}
