package state

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
)

// The keys. Ids hold no '/' (claim.CheckID, claim.CheckVolumeID), so a key's parts stay apart and a
// prefix that ends in '/' ends a part.
//
//	v/NS/VOLUME                        volume
//	c/NS/VOLUME/WNS/WORKLOAD           claim
//	w/NS/WORKLOAD                      workload
//	n/NODE                             node
//	d/DRIVER                           driver's counts
//	i/                                 the cluster's identity
//	t/ID                               token
//	k/                                 the cluster's signing key
//	g/                                 the rotation of the signing key
//	p/NAME                             ACL policy
//	r/NAME                             ACL role
//	a/ACCESSOR                         ACL token
//	b/                                 ACL bootstrap
//	l/                                 what was promised to nodes
//	o/                                 how the leader manages the servers
//	h/NS/NAME                          snapshot
//	s/                                 names of the keys that encrypt secrets
//	q/                                 the mark of the whole ledger
//	x/KEY                              outcome of a command with a key
//
//	cw/WNS/WORKLOAD/NS/VOLUME          claims of a workload
//	cn/NODE/NS/VOLUME/WNS/WORKLOAD     claims on a node
//	cr/NS/VOLUME/WNS/WORKLOAD          claims being released
//	vd/DRIVER/NS/VOLUME                volumes of a driver
//	ve/DRIVER/SHA256/NS/VOLUME         volumes by the hash of their external id
//	vm/NS/VOLUME                       volumes that are marked
//	he/DRIVER/SHA256/NS/NAME           snapshots by the hash of the driver's id
//	dn/DRIVER/NODE                     the driver on the node
//	we/TIME/NS/WORKLOAD                ended workloads, oldest first
//	wn/NODE/NS/WORKLOAD                workloads that run or wait on a node
//	tw/NS/WORKLOAD/ID                  tokens of a workload
//	tn/NODE/ID                         tokens on a node
//	ah/SHA256/ACCESSOR                 ACL token by its secret's hash
//	ae/TIME/ACCESSOR                   ACL tokens that expire, earliest first
//	xi/INDEX/TIME/KEY                  outcomes of commands with a key, oldest first
//	m/applied                          index of the last applied entry
const (
	volumes    = "v/"
	claims     = "c/"
	workloads  = "w/"
	nodes      = "n/"
	drivers    = "d/"
	identity   = "i/"
	tokens     = "t/"
	signingKey = "k/"

	keyRotation  = "g/"
	restoring    = "q/"
	aclPolicies  = "p/"
	aclRoles     = "r/"
	aclTokens    = "a/"
	aclBootstrap = "b/"
	liveness     = "l/"
	autopilot    = "o/"
	secretsKeys  = "s/"
	snapshots    = "h/"
	keptResults  = "x/"

	claimsByWorkload    = "cw/"
	claimsByNode        = "cn/"
	claimsReleasing     = "cr/"
	volumesByDriver     = "vd/"
	volumesByExternalID = "ve/"
	volumesMarked       = "vm/"
	snapshotsByID       = "he/"
	driversByNode       = "dn/"
	workloadsByEnd      = "we/"
	workloadsByNode     = "wn/"
	tokensByWorkload    = "tw/"
	tokensByNode        = "tn/"

	aclTokensByHash   = "ah/"
	aclTokensByExpiry = "ae/"
	keptByIndex       = "xi/"
)

var appliedKey = []byte("m/applied")

func volumePart(r claim.VolumeRef) string     { return r.Namespace + "/" + r.ID }
func workloadPart(r claim.WorkloadRef) string { return r.Namespace + "/" + r.ID }

func volumeKey(r claim.VolumeRef) string      { return volumes + volumePart(r) }
func workloadKey(r claim.WorkloadRef) string  { return workloads + workloadPart(r) }
func snapshotPart(r claim.SnapshotRef) string { return r.Namespace + "/" + r.Name }
func snapshotKey(r claim.SnapshotRef) string  { return snapshots + snapshotPart(r) }
func nodeKey(name string) string              { return nodes + name }
func driverKey(id string) string              { return drivers + id }
func tokenKey(id string) string               { return tokens + id }
func policyKey(name string) string            { return aclPolicies + name }
func roleKey(name string) string              { return aclRoles + name }
func keptKey(key string) string               { return keptResults + key }
func aclTokenKey(accessor string) string      { return aclTokens + accessor }

func claimPart(v claim.VolumeRef, w claim.WorkloadRef) string {
	return volumePart(v) + "/" + workloadPart(w)
}

func claimKey(v claim.VolumeRef, w claim.WorkloadRef) string { return claims + claimPart(v, w) }

func driverNodeKey(driver, node string) string { return driversByNode + driver + "/" + node }

func endKey(w *claim.Workload) string {
	return workloadsByEnd + timePart(w.EndedAt) + "/" + workloadPart(w.Ref)
}

// timePart formats a time so that it sorts: 16 hexadecimal digits of nanoseconds since 1970.
func timePart(t time.Time) string { return fmt.Sprintf("%016x", max(t.UnixNano(), 0)) }

// indexKeys are the keys that lead to a record and have no value of their own.

func volumeIndexKeys(v *claim.Volume) []string {
	part := volumePart(v.VolumeRef)
	keys := []string{volumesByDriver + v.PluginID + "/" + part, externalIDPart(v.PluginID, v.ExternalID) + part}
	if v.Mark != nil {
		keys = append(keys, volumesMarked+part)
	}
	return keys
}

// externalIDPart is the prefix of the index keys of all volumes with an external id. An external id may hold any
// characters, so its hash is in the key.
func externalIDPart(driver, externalID string) string {
	sum := sha256.Sum256([]byte(oneWriting(externalID)))
	return volumesByExternalID + driver + "/" + hex.EncodeToString(sum[:]) + "/"
}

func snapshotIndexKeys(s *claim.Snapshot) []string {
	return []string{snapshotIDPart(s.PluginID, s.ID) + snapshotPart(s.SnapshotRef)}
}

// snapshotIDPart is the prefix of the index keys of all names of a driver's snapshot. See externalIDPart.
func snapshotIDPart(driver, id string) string {
	return fmt.Sprintf("%s%s/%x/", snapshotsByID, driver, sha256.Sum256([]byte(oneWriting(id))))
}

func claimIndexKeys(c *claim.Claim) []string {
	part := claimPart(c.Volume, c.Workload)
	keys := []string{
		claimsByWorkload + workloadPart(c.Workload) + "/" + volumePart(c.Volume),
		claimsByNode + c.Node + "/" + part,
	}
	if c.State.Releasing() {
		keys = append(keys, claimsReleasing+part)
	}
	return keys
}

func workloadIndexKeys(w *claim.Workload) []string {
	if w.Status == claim.Ended {
		return []string{endKey(w)}
	}
	return []string{workloadsByNode + w.Node + "/" + workloadPart(w.Ref)}
}

func tokenIndexKeys(t *claim.Token) []string {
	return []string{
		tokensByWorkload + workloadPart(t.Workload) + "/" + t.ID,
		tokensByNode + t.Node + "/" + t.ID,
	}
}

func aclTokenIndexKeys(t *acl.Token) []string {
	keys := []string{aclTokensByHash + t.SecretHash + "/" + t.Accessor}
	if !t.ExpiresAt.IsZero() {
		keys = append(keys, aclTokensByExpiry+timePart(t.ExpiresAt)+"/"+t.Accessor)
	}
	return keys
}

func keptIndexKeys(k *kept) []string {
	return []string{keptByIndex + indexPart(k.Index) + "/" + timePart(k.At) + "/" + k.Key}
}

func indexPart(index uint64) string { return fmt.Sprintf("%016x", index) }

// oneWriting is an id as all writings of it compare. Some drivers read parts of an id as paths (csi-driver-nfs:
// server#share#directory#…), so that "a//b/" is "a/b".
func oneWriting(id string) string {
	parts := strings.Split(id, "#")
	for i, part := range parts {
		scheme, rest, ok := strings.Cut(part, "://")
		if !ok {
			scheme, rest = "", part
		} else {
			scheme += "://"
		}
		if strings.Contains(rest, "/") {
			parts[i] = scheme + path.Clean(rest)
		}
	}
	return strings.Join(parts, "#")
}
