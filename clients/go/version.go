package sidekeeper

// Version is the library's version, the same as the sidecar's that it is released with.
const Version = "0.1.0"

// clientName is how the library names itself to the sidecar, for its log.
const clientName = "sidekeeper-go/" + Version

const (
	// apiLevel is the API level that this library was written for.
	apiLevel = 2
	// sidecarAPILevelMin is the lowest API level of a sidecar that it works with.
	sidecarAPILevelMin = 1
	// levelOfInterruptions is the lowest API level of a sidecar that knows interruptions.
	levelOfInterruptions = 2
)
