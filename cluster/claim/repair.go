package claim

// Records of older versions may lack fields that rules now depend on. What is
// missing is filled in so that a rule errs on the safe side.

// Damaged says that the claim lacks what it must have.
func (c *Claim) Damaged() bool {
	return c.Mode == "" || c.State == "" || c.Node == "" || c.AccessMode == "" || c.AttachmentMode == ""
}

// Repair fills in what a claim lacks. v is its volume, with the modes that it
// has now, and node is where the claim's workload runs, empty when unknown. A claim
// with no mode counts as a writer unless the volume has readers only; one with no
// state is taken.
func (c *Claim) Repair(v Volume, node string) {
	if c.AccessMode == "" || c.AttachmentMode == "" {
		modes := v.currentModes()
		c.AccessMode, c.AttachmentMode = modes.AccessMode, modes.AttachmentMode
	}
	if c.Mode == "" {
		c.Mode = Write
		if c.AccessMode == SingleNodeReaderOnly || c.AccessMode == MultiNodeReaderOnly {
			c.Mode = Read
		}
	}
	if c.State == "" {
		c.State = Taken
	}
	if c.Node == "" {
		c.Node = node
	}
}

// currentModes are the volume's modes or, for a record that lacks them, those
// that it must be in use with: its first capability.
func (v *Volume) currentModes() Capability {
	if v.AccessMode != "" && v.AttachmentMode != "" {
		return Capability{v.AccessMode, v.AttachmentMode}
	}
	if len(v.Capabilities) > 0 {
		return v.Capabilities[0]
	}
	return Capability{SingleNodeWriter, FileSystem}
}
