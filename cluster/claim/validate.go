package claim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MaxID is the longest id, in bytes.
const MaxID = 128

// maxDriverNodeID bounds a driver's own id of a node, in bytes (CSI spec, NodeGetInfoResponse).
const maxDriverNodeID = 256

// MaxBy bounds the name of an operator who vouches for something, in bytes.
const MaxBy = 256

// CheckBy checks the name of an operator who vouches that a node is down; empty is allowed. The error is a
// *FieldError.
func CheckBy(by string) error {
	if len(by) > MaxBy {
		return &FieldError{Object: "operator", Field: "by", Problem: fmt.Sprintf("has %d bytes: at most %d are allowed",
			len(by), MaxBy)}
	}
	return nil
}

// CheckID returns what is wrong with an id, which must be 1 to 128 of a-z, A-Z, 0-9, '-', '_' and '.'. Ids become
// parts of paths and keys, so "." and ".." are refused.
func CheckID(id string) error {
	if err := checkLength(id); err != nil {
		return err
	}
	for _, r := range id {
		if !InID(r) {
			return fmt.Errorf("%q has the character %q: only a-z, A-Z, 0-9, '-', '_' and '.' are allowed", id, r)
		}
	}
	return nil
}

func checkLength(id string) error {
	switch {
	case id == "":
		return errors.New("is missing")
	case len(id) > MaxID:
		return fmt.Errorf("is longer than %d characters (%d)", MaxID, len(id))
	case id == "." || id == "..":
		return fmt.Errorf("must not be %q", id)
	}
	return nil
}

// InID reports whether an id may have the character; see CheckID.
func InID(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
}

// maxUnusual is how many characters of a volume's id may be others than CheckID accepts. In a path each becomes three
// bytes (mounts.Layout), and an element of a path has 255.
const maxUnusual = (255 - MaxID) / 2

// CheckVolumeID returns what is wrong with the id of a volume. It is as CheckID wants it, but may have up to 63 other
// visible ASCII characters except '/', such as those of "data[0]", as volumes of Nomad have them. What is made of an
// id, such as a path or a command, must escape them.
func CheckVolumeID(id string) error {
	unusual := 0
	for _, r := range id {
		switch {
		case r <= ' ' || r > '~' || r == '/':
			return fmt.Errorf("%q has the character %q: only visible ASCII characters other than '/' are allowed", id, r)
		case !InID(r):
			unusual++
		}
	}
	if unusual > maxUnusual && len(id) <= MaxID {
		return fmt.Errorf("%q has %d characters other than a-z, A-Z, 0-9, '-', '_' and '.': at most %d are allowed", id,
			unusual, maxUnusual)
	}
	return checkLength(id)
}

// reserved begins the keys of volume_context and parameters by which drivers learn which workload or volume a call is
// for (Kubernetes, "CSI ephemeral inline volumes", external-provisioner). Some drivers ignore the case of keys.
var reserved = []string{"csi.storage.k8s.io/", "storage.kubernetes.io/"}

// CheckKeys returns what is wrong with the keys that somebody wrote for a driver: only the agent sets reserved ones.
func CheckKeys(written map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(written)) {
		for _, prefix := range reserved {
			if strings.HasPrefix(strings.ToLower(key), prefix) {
				return fmt.Errorf("%q is set by the agent: leave it out", key)
			}
		}
	}
	return nil
}

// checker collects the problems of one object's fields; err is the first one.
type checker struct {
	object func() string // its name, which is formatted only for a problem
	err    error
	all    []*FieldError
}

func (c *checker) fail(field, problem string) {
	c.all = append(c.all, &FieldError{Object: c.object(), Field: field, Problem: problem})
	c.err = c.all[0]
}

func (c *checker) id(field, id string) {
	if err := CheckID(id); err != nil {
		c.fail(field, err.Error())
	}
}

func (c *checker) keys(field string, written map[string]string) {
	if err := CheckKeys(written); err != nil {
		c.fail(field, err.Error())
	}
}

func (c *checker) volume(r VolumeRef) {
	if err := CheckVolumeID(r.ID); err != nil {
		c.fail("id", err.Error())
	}
	c.id("namespace", r.Namespace)
}

// Validate checks the reference's id and namespace.
func (r VolumeRef) Validate() error {
	c := checker{object: func() string { return fmt.Sprintf("volume %q", r) }}
	c.volume(r)
	return c.err
}

// Validate checks the reference's id and namespace.
func (r WorkloadRef) Validate() error {
	c := checker{object: func() string { return fmt.Sprintf("workload %q", r) }}
	c.id("id", r.ID)
	c.id("namespace", r.Namespace)
	return c.err
}

// Validate checks a volume before it is registered. The error is a *FieldError.
func (v *Volume) Validate() error {
	c := v.check()
	if v.ExternalID == "" {
		c.fail("external_id", "is missing")
	}
	c.keys("mutable_parameters", v.MutableParameters)
	return c.err
}

// Problems are all faults of a definition before the driver has given its part.
func (d *Definition) Problems() []*FieldError { return d.check().all }

func (d *Definition) check() checker {
	c := checker{object: func() string { return fmt.Sprintf("volume %q", d.VolumeRef) }}
	c.volume(d.VolumeRef)
	if d.PluginID == "" {
		c.fail("plugin_id", "is missing: the id of a CSI driver, as pannier driver status lists it")
	} else {
		c.id("plugin_id", d.PluginID)
	}
	if len(d.Capabilities) == 0 {
		c.fail("capability", "is missing: write at least one, such as "+
			`capability { access_mode = "single-node-writer", attachment_mode = "file-system" }`)
	}
	for i, have := range d.Capabilities {
		c.modes(have.AccessMode, have.AttachmentMode)
		if have.AccessMode != "" && have.AttachmentMode != "" && slices.Contains(d.Capabilities[:i], have) {
			c.fail("capability", fmt.Sprintf("%s is there twice", have))
		}
	}
	if d.CapacityMin < 0 || d.CapacityMax < 0 {
		c.fail("capacity_min, capacity_max", "must not be negative")
	}
	if d.CapacityMax > 0 && d.CapacityMin > d.CapacityMax {
		c.fail("capacity_min", fmt.Sprintf("is %d bytes, which is more than capacity_max, %d", d.CapacityMin, d.CapacityMax))
	}
	if d.CloneID != "" && d.SnapshotID != "" {
		c.fail("snapshot_id", "is given beside clone_id: a volume is made of one of them at most")
	}
	for _, id := range [][2]string{{"external_id", d.ExternalID}, {"clone_id", d.CloneID}, {"snapshot_id", d.SnapshotID}} {
		if slices.Contains(strings.FieldsFunc(id[1], func(r rune) bool { return strings.ContainsRune("/#:", r) }), "..") {
			c.fail(id[0], fmt.Sprintf("%q leads to the directory above: write the id as the driver lists it", id[1]))
		}
	}
	c.keys("parameters", d.Parameters)
	c.keys("context", d.Context)
	return c
}

func (c *checker) modes(access AccessMode, attachment AttachmentMode) {
	if !slices.Contains(AccessModes, access) {
		c.fail("access_mode", fmt.Sprintf("%q is none of %v", access, AccessModes))
	}
	if !slices.Contains(AttachmentModes, attachment) {
		c.fail("attachment_mode", fmt.Sprintf("%q is none of %v", attachment, AttachmentModes))
	}
}

// Validate checks a wanted claim. The error is a *FieldError.
func (c *Claim) Validate() error {
	if err := c.Volume.Validate(); err != nil {
		return err
	}
	if err := c.Workload.Validate(); err != nil {
		return err
	}
	k := checker{object: func() string { return fmt.Sprintf("claim of workload %q on volume %q", c.Workload, c.Volume) }}
	k.id("node", c.Node)
	if len(c.DriverNodeID) > maxDriverNodeID {
		k.fail("driver_node_id", fmt.Sprintf("has %d bytes: at most %d are allowed", len(c.DriverNodeID), maxDriverNodeID))
	}
	k.modes(c.AccessMode, c.AttachmentMode)
	if c.Mode != Read && c.Mode != Write {
		k.fail("mode", fmt.Sprintf("%q is neither %q nor %q", c.Mode, Read, Write))
	}
	return k.err
}

// String returns the access and the attachment mode.
func (c Capability) String() string {
	return fmt.Sprintf("%s/%s", c.AccessMode, c.AttachmentMode)
}
