package sidekeeper

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// JobConfiguration is a job's configuration: ElasticJob's fields under ElasticJob's names. It is in the registry, where
// all instances of the job share it. Nil and empty texts mean the sidecar's defaults, which are ElasticJob's; [Ptr]
// makes the pointers.
type JobConfiguration struct {
	// ShardingTotalCount is into how many items the job is split: 1 to 10000. Required.
	ShardingTotalCount int
	// Cron is a Quartz expression, seconds first: "0/5 * * * * ?". Empty: the job only runs when it is triggered.
	Cron string
	// TimeZone is that of Cron: "Europe/Berlin" or "GMT+8:00". Empty: UTC.
	TimeZone string
	// ShardingItemParameters is one parameter for each item, as text: "0=Beijing,1=Shanghai". See [ItemParameters].
	ShardingItemParameters string
	// JobParameter is a parameter for the whole job, handed to each execution.
	JobParameter string
	// MonitorExecution is whether the registry shows running executions. Default: true.
	MonitorExecution *bool
	// Failover is whether the items that a crashed instance was executing are executed by another one. Default: false.
	Failover *bool
	// Misfire is whether missed fires of an item are followed by one misfire re-run. Default: true.
	Misfire *bool
	// MaxTimeDiff is how far clocks may differ before it is reported; whole seconds. Default: no check.
	MaxTimeDiff *time.Duration
	// ReconcileInterval is how often the assignment is compared with the instances online; whole minutes. Zero: never.
	// Default: 10 minutes.
	ReconcileInterval *time.Duration
	// JobShardingStrategyType is how items are assigned: AVG_ALLOCATION (default), ODEVITY, ROUND_ROBIN,
	// SINGLE_SHARDING_BALANCE or CONSISTENT_HASH.
	JobShardingStrategyType string
	// StaticSharding is whether the first assignment stays for good. Default: false.
	StaticSharding *bool
	// Disabled is whether the server is registered as disabled when it does not exist yet. Default: false.
	Disabled *bool
	// Overwrite is whether this configuration replaces the registry's. Default: false, the registry's is used.
	Overwrite *bool
	// JobClass is the Java class or job type that Java instances of this job use. Empty: the registry's.
	JobClass string
	// Description is the job's purpose.
	Description string
	// Label is stored only.
	Label string
	// Props are further settings; those of Sidekeeper begin with "sidekeeper.".
	Props map[string]string
	// JobErrorHandlerType is the Java error handler's type, stored only.
	JobErrorHandlerType string
	// JobExecutorThreadPoolSizeProviderType is the Java thread pool's type, stored only.
	JobExecutorThreadPoolSizeProviderType string
	// JobListenerTypes are the types of the Java job listeners, stored only.
	JobListenerTypes []string
}

// Ptr returns a pointer to a value, for the fields that may be left out: Failover: sidekeeper.Ptr(true).
func Ptr[T any](value T) *T {
	return &value
}

// ItemParameters returns item parameters in ElasticJob's form, "0=Beijing,1=Shanghai". It fails if one of them contains
// ',' or '=', which the form cannot express.
func ItemParameters(parameters map[int]string) (string, error) {
	var text strings.Builder
	for _, item := range slices.Sorted(maps.Keys(parameters)) {
		if strings.ContainsAny(parameters[item], ",=") {
			return "", fmt.Errorf("item parameter %d: %q contains ',' or '='", item, parameters[item])
		}
		if text.Len() > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, "%d=%s", item, parameters[item])
	}
	return text.String(), nil
}

// Problem is something wrong that does not stop the job, found in the registry or on the way to it.
type Problem struct {
	// Path is the node concerned, from the namespace on. Empty: not about one node.
	Path string
	// Message is the error and its remedy.
	Message string
	// Code is for programs: the entry of the catalogue in docs/operations.md, for example NODE_UNREADABLE. Empty: the sidecar is of an
	// earlier version.
	Code string
}

func (c *JobConfiguration) toProto() (*sidekeeperv1.JobConfiguration, error) {
	if c == nil {
		return nil, nil
	}
	if c.ShardingTotalCount < 0 || c.ShardingTotalCount > 1<<31-1 {
		return nil, fmt.Errorf("sharding total count: %d is out of range; allowed are 1 to 10000", c.ShardingTotalCount)
	}
	return &sidekeeperv1.JobConfiguration{
		ShardingTotalCount:                    uint32(c.ShardingTotalCount),
		Cron:                                  c.Cron,
		TimeZone:                              c.TimeZone,
		ShardingItemParameters:                c.ShardingItemParameters,
		JobParameter:                          c.JobParameter,
		MonitorExecution:                      c.MonitorExecution,
		Failover:                              c.Failover,
		Misfire:                               c.Misfire,
		MaxTimeDiff:                           toDuration(c.MaxTimeDiff),
		ReconcileInterval:                     toDuration(c.ReconcileInterval),
		JobShardingStrategyType:               c.JobShardingStrategyType,
		StaticSharding:                        c.StaticSharding,
		Disabled:                              c.Disabled,
		Overwrite:                             c.Overwrite,
		JobClass:                              c.JobClass,
		Description:                           c.Description,
		Label:                                 c.Label,
		Props:                                 maps.Clone(c.Props),
		JobErrorHandlerType:                   c.JobErrorHandlerType,
		JobExecutorThreadPoolSizeProviderType: c.JobExecutorThreadPoolSizeProviderType,
		JobListenerTypes:                      slices.Clone(c.JobListenerTypes),
	}, nil
}

func configurationFromProto(message *sidekeeperv1.JobConfiguration) *JobConfiguration {
	if message == nil {
		return nil
	}
	return &JobConfiguration{
		ShardingTotalCount:                    int(message.GetShardingTotalCount()),
		Cron:                                  message.GetCron(),
		TimeZone:                              message.GetTimeZone(),
		ShardingItemParameters:                message.GetShardingItemParameters(),
		JobParameter:                          message.GetJobParameter(),
		MonitorExecution:                      message.MonitorExecution,
		Failover:                              message.Failover,
		Misfire:                               message.Misfire,
		MaxTimeDiff:                           fromDuration(message.MaxTimeDiff),
		ReconcileInterval:                     fromDuration(message.ReconcileInterval),
		JobShardingStrategyType:               message.GetJobShardingStrategyType(),
		StaticSharding:                        message.StaticSharding,
		Disabled:                              message.Disabled,
		Overwrite:                             message.Overwrite,
		JobClass:                              message.GetJobClass(),
		Description:                           message.GetDescription(),
		Label:                                 message.GetLabel(),
		Props:                                 message.GetProps(),
		JobErrorHandlerType:                   message.GetJobErrorHandlerType(),
		JobExecutorThreadPoolSizeProviderType: message.GetJobExecutorThreadPoolSizeProviderType(),
		JobListenerTypes:                      message.GetJobListenerTypes(),
	}
}

func toDuration(duration *time.Duration) *durationpb.Duration {
	if duration == nil {
		return nil
	}
	return durationpb.New(*duration)
}

func fromDuration(message *durationpb.Duration) *time.Duration {
	if message == nil {
		return nil
	}
	return Ptr(message.AsDuration())
}
