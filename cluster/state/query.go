package state

import (
	"errors"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
)

// Page selects a part of a list.
type Page struct {
	After string // the cursor of the previous page; empty: from the start
	Limit int    // 0: all
}

func (p Page) span(base, sub string) span {
	s := span{base: base, sub: sub, after: p.After}
	if p.Limit > 0 {
		s.limit = p.Limit + 1 // one more, to know whether there is a next page
	}
	return s
}

// cut removes the extra item and returns the cursor of the next page.
func cut[T any](p Page, found []T, cursor func(T) string) ([]T, string) {
	if p.Limit <= 0 || len(found) <= p.Limit {
		return found, ""
	}
	found = found[:p.Limit]
	return found, cursor(found[len(found)-1])
}

// Volume reads one volume, with its present modes. The error is claim.ErrVolumeNotFound if it is not registered.
func (tx *ReadTx) Volume(ref claim.VolumeRef) (claim.Volume, error) {
	v, err := tx.definition(ref)
	if err != nil {
		return v, err
	}
	err = tx.setModes(&v)
	return v, err
}

// VolumeWithClaims reads one volume as Volume does, and the claims on it, by workload.
func (tx *ReadTx) VolumeWithClaims(ref claim.VolumeRef) (claim.Volume, []claim.Claim, error) {
	v, err := tx.definition(ref)
	if err != nil {
		return v, nil, err
	}
	held, err := tx.Claims(ref)
	setModes(&v, held)
	return v, held, err
}

// definition reads a volume without its present modes.
func (tx *ReadTx) definition(ref claim.VolumeRef) (claim.Volume, error) {
	return need[claim.Volume](tx.reader, volumeKey(ref), "volume %q %w", ref, claim.ErrVolumeNotFound)
}

// setModes sets a volume's present modes.
func (tx *ReadTx) setModes(v *claim.Volume) error {
	held, err := tx.someClaims(v.VolumeRef, 1)
	if err != nil {
		return err
	}
	setModes(v, held)
	return nil
}

// setModes sets a volume's modes, which are its first claim's. They are stored nowhere else: so they come with the
// first claim and go with the last.
func setModes(v *claim.Volume, held []claim.Claim) {
	if len(held) == 0 {
		v.AccessMode, v.AttachmentMode = "", ""
		return
	}
	v.AccessMode, v.AttachmentMode = held[0].AccessMode, held[0].AttachmentMode
}

// VolumeQuery selects volumes. Empty fields select all.
type VolumeQuery struct {
	Namespace string
	Driver    string // volumes of this CSI driver
	Prefix    string // of the id; needs Namespace
	Page
}

// Volumes lists volumes by namespace and id, and returns the cursor of the next page; it is empty at the end.
func (tx *ReadTx) Volumes(q VolumeQuery) ([]claim.Volume, string, error) {
	sub := ""
	if q.Namespace != "" {
		sub = q.Namespace + "/" + q.Prefix
	}
	var found []claim.Volume
	var err error
	if q.Driver == "" {
		found, err = records[claim.Volume](tx.reader, q.span(volumes, sub))
	} else {
		found, err = indexed[claim.Volume](tx.reader, q.span(volumesByDriver+q.Driver+"/", sub),
			func(part string) string { return volumes + part })
	}
	if err != nil {
		return nil, "", err
	}
	found, next := cut(q.Page, found, func(v claim.Volume) string { return volumePart(v.VolumeRef) })
	for i := range found {
		if err := tx.setModes(&found[i]); err != nil {
			return nil, "", err
		}
	}
	return found, next, nil
}

// VolumeRefs lists the names of volumes by namespace and id, and reads none of the volumes.
func (tx *ReadTx) VolumeRefs(namespace, driver string) (refs []claim.VolumeRef, err error) {
	s := span{base: volumes}
	if driver != "" {
		s.base = volumesByDriver + driver + "/"
	}
	if namespace != "" {
		s.sub = namespace + "/"
	}
	err = tx.scan(s, false, func(part string, _ []byte) error {
		namespace, id, _ := strings.Cut(part, "/")
		refs = append(refs, claim.VolumeRef{Namespace: namespace, ID: id})
		return nil
	})
	return refs, err
}

// Totals is how many records the ledger has.
type Totals struct{ Volumes, Claims, Tokens int }

// Totals counts records, and reads none of them.
func (tx *ReadTx) Totals() (t Totals, err error) {
	for base, n := range map[string]*int{volumes: &t.Volumes, claims: &t.Claims, tokens: &t.Tokens} {
		err = errors.Join(err, tx.scan(span{base: base}, false, func(string, []byte) error { *n++; return nil }))
	}
	return t, err
}

// VolumesClaimed returns the volumes that have a claim, or one that is being released.
func (tx *ReadTx) VolumesClaimed(releasing bool) (map[claim.VolumeRef]bool, error) {
	base := claims
	if releasing {
		base = claimsReleasing
	}
	found := map[claim.VolumeRef]bool{}
	err := tx.scan(span{base: base}, false, func(part string, _ []byte) error {
		namespace, rest, _ := strings.Cut(part, "/")
		id, _, _ := strings.Cut(rest, "/")
		found[claim.VolumeRef{Namespace: namespace, ID: id}] = true
		return nil
	})
	return found, err
}

// VolumesByExternalID lists the volumes with an external id of a driver: one at most.
func (tx *ReadTx) VolumesByExternalID(driver, externalID string) ([]claim.VolumeRef, error) {
	var found []claim.VolumeRef
	err := tx.scan(span{base: externalIDPart(driver, externalID)}, false, func(part string, _ []byte) error {
		namespace, id, _ := strings.Cut(part, "/")
		found = append(found, claim.VolumeRef{Namespace: namespace, ID: id})
		return nil
	})
	return found, err
}

// Snapshot reads the snapshot of a name. The error is claim.ErrSnapshotNotFound if no snapshot has it.
func (tx *ReadTx) Snapshot(ref claim.SnapshotRef) (claim.Snapshot, error) {
	return need[claim.Snapshot](tx.reader, snapshotKey(ref), "snapshot %q %w", ref, claim.ErrSnapshotNotFound)
}

// SnapshotsByID lists the names of a driver's snapshot, by namespace and name. There is at most one, unless a driver
// gives one id to several snapshots.
func (tx *ReadTx) SnapshotsByID(driver, id string) ([]claim.Snapshot, error) {
	return indexed[claim.Snapshot](tx.reader, span{base: snapshotIDPart(driver, id)},
		func(part string) string { return snapshots + part })
}

// Claim reads one claim. The error is claim.ErrClaimNotFound if there is none.
func (tx *ReadTx) Claim(v claim.VolumeRef, w claim.WorkloadRef) (claim.Claim, error) {
	return need[claim.Claim](tx.reader, claimKey(v, w), "claim of workload %q on volume %q: %w", w, v, claim.ErrClaimNotFound)
}

// Claims lists the claims on a volume, by workload.
func (tx *ReadTx) Claims(v claim.VolumeRef) ([]claim.Claim, error) {
	return tx.someClaims(v, 0)
}

func (tx *ReadTx) someClaims(v claim.VolumeRef, limit int) ([]claim.Claim, error) {
	return records[claim.Claim](tx.reader, span{base: claims + volumePart(v) + "/", limit: limit})
}

// AllClaims lists every claim, by volume and workload.
func (tx *ReadTx) AllClaims() ([]claim.Claim, error) {
	return records[claim.Claim](tx.reader, span{base: claims})
}

// EachClaim calls fn for every claim, by volume and workload, until fn returns an error. It keeps none in memory.
func (tx *ReadTx) EachClaim(fn func(claim.Claim) error) error {
	return eachRecord(tx.reader, span{base: claims}, fn)
}

// ClaimsOf lists a workload's claims, by volume.
func (tx *ReadTx) ClaimsOf(w claim.WorkloadRef) ([]claim.Claim, error) {
	return indexed[claim.Claim](tx.reader, span{base: claimsByWorkload + workloadPart(w) + "/"},
		func(part string) string { return claims + part + "/" + workloadPart(w) })
}

// ClaimsOn lists the claims on a node, by volume and workload.
func (tx *ReadTx) ClaimsOn(node string) ([]claim.Claim, error) {
	return tx.claimsAt(span{base: claimsByNode + node + "/"})
}

// Releasing lists the claims that are being released, by volume and workload, and returns the cursor of the next
// page; it is empty at the end.
func (tx *ReadTx) Releasing(p Page) ([]claim.Claim, string, error) {
	found, err := tx.claimsAt(p.span(claimsReleasing, ""))
	if err != nil {
		return nil, "", err
	}
	found, next := cut(p, found, func(c claim.Claim) string { return claimPart(c.Volume, c.Workload) })
	return found, next, nil
}

func (tx *ReadTx) claimsAt(s span) ([]claim.Claim, error) {
	return indexed[claim.Claim](tx.reader, s, func(part string) string { return claims + part })
}

// Workload reads one workload. The error is claim.ErrWorkloadNotFound if there is none.
func (tx *ReadTx) Workload(ref claim.WorkloadRef) (claim.Workload, error) {
	return need[claim.Workload](tx.reader, workloadKey(ref), "workload %q: %w", ref, claim.ErrWorkloadNotFound)
}

// Workloads lists the workloads of one namespace or, if it is empty, of all, by namespace and id, and returns the
// cursor of the next page.
func (tx *ReadTx) Workloads(namespace string, p Page) ([]claim.Workload, string, error) {
	sub := ""
	if namespace != "" {
		sub = namespace + "/"
	}
	found, err := records[claim.Workload](tx.reader, p.span(workloads, sub))
	if err != nil {
		return nil, "", err
	}
	found, next := cut(p, found, func(w claim.Workload) string { return workloadPart(w.Ref) })
	return found, next, nil
}

// EachWorkload calls fn for every workload, by namespace and id, until fn returns an error. It keeps none in memory.
func (tx *ReadTx) EachWorkload(fn func(claim.Workload) error) error {
	return eachRecord(tx.reader, span{base: workloads}, fn)
}

// WorkloadsOn lists the workloads that run or wait on a node, by namespace and id.
func (tx *ReadTx) WorkloadsOn(node string) ([]claim.Workload, error) {
	return indexed[claim.Workload](tx.reader, span{base: workloadsByNode + node + "/"},
		func(part string) string { return workloads + part })
}

// Node reads one node. The error is claim.ErrNodeNotFound if there is none.
func (tx *ReadTx) Node(name string) (claim.Node, error) {
	return need[claim.Node](tx.reader, nodeKey(name), "%q %w", name, claim.ErrNodeNotFound)
}

// Cluster reads the cluster's identity; found is false if it has none yet.
func (tx Settings) Cluster() (c claim.Cluster, found bool, err error) {
	return read[claim.Cluster](tx.reader, identity)
}

// Nodes lists all nodes by name.
func (tx *ReadTx) Nodes() ([]claim.Node, error) {
	return records[claim.Node](tx.reader, span{base: nodes})
}

// Driver reads one driver with the report of each node. The error is claim.ErrDriverNotFound if no node has, or
// recently had, it.
func (tx *ReadTx) Driver(id string) (claim.Driver, error) {
	d, err := need[claim.Driver](tx.reader, driverKey(id), "driver %q %w", id, claim.ErrDriverNotFound)
	if err != nil {
		return d, err
	}
	err = tx.setNodes(&d)
	return d, err
}

func (tx *ReadTx) setNodes(d *claim.Driver) error {
	d.Nodes = map[string]claim.NodeDriver{}
	return tx.scan(span{base: driversByNode + d.ID + "/"}, true, func(node string, value []byte) error {
		n, err := decode[claim.NodeDriver](value)
		if err != nil {
			return fault("read driver %q on node %q: %w", d.ID, node, err)
		}
		of, err := tx.Node(node)
		if err != nil && !errors.Is(err, claim.ErrNodeNotFound) {
			return err
		}
		seen := of.Seen(n)
		d.Replace(&n, &seen)
		d.Nodes[node] = seen
		return nil
	})
}

// Drivers lists all drivers by id, with the report of each node.
func (tx *ReadTx) Drivers() ([]claim.Driver, error) {
	found, err := records[claim.Driver](tx.reader, span{base: drivers})
	if err != nil {
		return nil, err
	}
	for i := range found {
		if err := tx.setNodes(&found[i]); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Token reads the record of one token. The error is claim.ErrTokenNotFound if there is none.
func (tx *ReadTx) Token(id string) (claim.Token, error) {
	return need[claim.Token](tx.reader, tokenKey(id), "token %q: %w", id, claim.ErrTokenNotFound)
}

// Tokens lists the tokens of one namespace or, if it is empty, of all, by namespace and workload. Their workloads
// may be gone.
func (tx *ReadTx) Tokens(namespace string) ([]claim.Token, error) {
	sub := ""
	if namespace != "" {
		sub = namespace + "/"
	}
	return tx.tokensAt(span{base: tokensByWorkload, sub: sub})
}

// TokensOf lists a workload's tokens, including tokens of earlier runs.
func (tx *ReadTx) TokensOf(ref claim.WorkloadRef) ([]claim.Token, error) {
	return tx.tokensAt(span{base: tokensByWorkload, sub: workloadPart(ref) + "/"})
}

// TokensOn lists the tokens of a node.
func (tx *ReadTx) TokensOn(node string) ([]claim.Token, error) {
	return tx.tokensAt(span{base: tokensByNode, sub: node + "/"})
}

// tokensAt reads the tokens that an index leads to: the last part of its keys is the token's id.
func (tx *ReadTx) tokensAt(s span) ([]claim.Token, error) {
	return indexed[claim.Token](tx.reader, s,
		func(part string) string { return tokens + part[strings.LastIndexByte(part, '/')+1:] })
}

// SigningKey reads the cluster's signing key; found is false if it has none yet.
func (tx Settings) SigningKey() (k claim.SigningKey, found bool, err error) {
	return read[claim.SigningKey](tx.reader, signingKey)
}

// KeyRotation reads the rotation of the signing key; found is false if none is under way.
func (tx Settings) KeyRotation() (r claim.KeyRotation, found bool, err error) {
	return read[claim.KeyRotation](tx.reader, keyRotation)
}
