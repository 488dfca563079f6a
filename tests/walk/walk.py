"""Public methods of other libraries, with arguments, that can change the attention, weights or options of a network."""

import copy
import warnings

import accelerate
import peft
import torch
import transformers
from torch import nn
from transformers import Trainer, TrainingArguments

import probattn
from probattn import BayesianAttention
from probattn.inference import posterior_predict
from probattn.models import convert

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
BATCH = {"input_ids": torch.arange(12).view(2, 6) + 1, "attention_mask": torch.ones(2, 6, dtype=torch.long)}
TOLERANCE = {"half": 0.02, "bfloat16": 0.1}
"""Of draws whose sites compute in these types."""
FORWARDED = ("merge_and_unload", "merge_adapter", "unload", "unmerge_adapter")
"""Methods that PEFT's wrapper takes from its tuner."""
LORA = {"target_modules": ["query"], "r": 2, "task_type": "SEQ_CLS"}


def plain():
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=32, initializer_range=0.4, **SIZES)
    return transformers.BertForSequenceClassification(config).eval()


def converted(net):
    torch.manual_seed(1)
    return convert(net, BayesianAttention())


def with_lora(net):
    torch.manual_seed(2)
    return peft.get_peft_model(net, peft.LoraConfig(**LORA)).eval()


def draws(net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return posterior_predict(net, BATCH, 4, seed=3).logits.float()


def trainer(net, folder, cls=Trainer):
    rows = [{**{name: value[i % 2] for name, value in BATCH.items()}, "labels": i % 2} for i in range(4)]
    arguments = TrainingArguments(str(folder), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
    return cls(model=net, args=arguments, train_dataset=rows, eval_dataset=rows)


def attention(net, layer=0):
    return net.bert.encoder.layer[layer].attention.self


def new_attention(net):
    torch.manual_seed(4)
    return type(attention(net))(net.config).eval()


def replaced(net):
    net.bert.encoder.layer[0].attention.self = new_attention(net)


def bypassed(net):
    for layer in net.bert.encoder.layer:
        layer.attention.forward = lambda hidden, *_, **__: (hidden, None)


def saved(net, folder):
    net.save_pretrained(folder)
    return probattn.from_pretrained(transformers.AutoModelForSequenceClassification, folder).eval()


def added(net, _):
    torch.manual_seed(2)
    net.add_adapter(peft.LoraConfig(**LORA))
    return net


def after_adding(name, *args):
    def call(net, folder):
        getattr(added(net, folder), name)(*args)
        return net

    return call


def emptied(net, _):
    state = {name: value.clone() for name, value in net.state_dict().items()}
    net.to_empty(device="cpu")
    for buffer in (net.bert.embeddings.position_ids, net.bert.embeddings.token_type_ids):
        buffer.zero_()
    net.bert.embeddings.position_ids.copy_(torch.arange(net.config.max_position_embeddings)[None])
    net.load_state_dict(state)
    return net


def prepared(net, _):
    return accelerate.Accelerator(cpu=True).prepare(net)


def unwrapped(net, _):
    accelerator = accelerate.Accelerator(cpu=True)
    return accelerator.unwrap_model(accelerator.prepare(net))


def restored(net, folder):
    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(net)
    accelerator.save_state(str(folder))
    accelerator.load_state(str(folder))
    return prepared


def loaded_checkpoint(net, folder):
    torch.save(net.state_dict(), folder / "pytorch_model.bin")
    accelerate.load_checkpoint_in_model(net, str(folder / "pytorch_model.bin"))
    return net


def dispatched_checkpoint(net, folder):
    torch.save(net.state_dict(), folder / "pytorch_model.bin")
    return accelerate.load_checkpoint_and_dispatch(
        net, str(folder / "pytorch_model.bin"), device_map={"": "cpu"}
    )


def calling(name, *args, **options):
    """Calls a method, for what it does to the network."""

    def call(net, _):
        getattr(net, name)(*args, **options)
        return net

    return call


def training(name, *args, cls=Trainer):
    """Calls a method of a trainer of the network."""

    def call(net, folder):
        getattr(trainer(net, folder, cls), name)(*args)
        return net.eval()

    return call


def setting(change):
    """Changes the network by a function."""

    def call(net, _):
        change(net)
        return net

    return call


def each_config(net):
    for module in net.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"


EQUAL, COMMUTES = "equal", "commutes"
"""Draws are those before the call; or those of a network that was converted after the call, for it changes weights."""
MODULE = {
    "add_module": (EQUAL, calling("add_module", "extra", nn.Linear(2, 2))),
    "apply": (EQUAL, calling("apply", lambda _: None)),
    "bfloat16": (COMMUTES, calling("bfloat16")),
    "compile": (EQUAL, calling("compile", backend="eager")),
    "cpu": (EQUAL, calling("cpu")),
    "double": (COMMUTES, calling("double")),
    "eval": (EQUAL, calling("eval")),
    "float": (EQUAL, calling("float")),
    "half": (COMMUTES, calling("half")),
    "load_state_dict": (EQUAL, setting(lambda net: net.load_state_dict(net.state_dict()))),
    "register_backward_hook": (EQUAL, calling("register_backward_hook", lambda *_: None)),
    "register_buffer": (EQUAL, calling("register_buffer", "extra", torch.zeros(2))),
    "register_forward_hook": (
        EQUAL,
        setting(lambda net: attention(net).register_forward_hook(lambda *_: None)),
    ),
    "register_forward_pre_hook": (
        EQUAL,
        setting(lambda net: attention(net).register_forward_pre_hook(lambda *_: None)),
    ),
    "register_full_backward_hook": (EQUAL, calling("register_full_backward_hook", lambda *_: None)),
    "register_full_backward_pre_hook": (EQUAL, calling("register_full_backward_pre_hook", lambda *_: None)),
    "register_load_state_dict_post_hook": (
        EQUAL,
        calling("register_load_state_dict_post_hook", lambda *_: None),
    ),
    "register_load_state_dict_pre_hook": (
        EQUAL,
        calling("register_load_state_dict_pre_hook", lambda *_: None),
    ),
    "register_module": (EQUAL, calling("register_module", "extra", nn.Linear(2, 2))),
    "register_parameter": (EQUAL, calling("register_parameter", "extra", nn.Parameter(torch.zeros(2)))),
    "register_state_dict_post_hook": (EQUAL, calling("register_state_dict_post_hook", lambda *_: None)),
    "register_state_dict_pre_hook": (EQUAL, calling("register_state_dict_pre_hook", lambda *_: None)),
    "requires_grad_": (EQUAL, calling("requires_grad_", False)),
    "set_submodule": (
        "put into a converted network",
        setting(lambda net: net.set_submodule("bert.encoder.layer.0.attention.self", new_attention(net))),
    ),
    "share_memory": (EQUAL, calling("share_memory")),
    "to": (COMMUTES, calling("to", torch.float64)),
    "to_empty": (EQUAL, emptied),
    "train": (EQUAL, calling("train")),
    "type": ("Expected dtype", calling("type", torch.float64)),
    "zero_grad": (EQUAL, calling("zero_grad")),
}
PRETRAINED = {
    "activation_checkpointing_enable": (EQUAL, calling("activation_checkpointing_enable")),
    "activation_checkpointing_disable": (EQUAL, calling("activation_checkpointing_disable")),
    "gradient_checkpointing_enable": (EQUAL, calling("gradient_checkpointing_enable")),
    "gradient_checkpointing_disable": (EQUAL, calling("gradient_checkpointing_disable")),
    "add_adapter": (EQUAL, added),
    "delete_adapter": (EQUAL, after_adding("delete_adapter", "default")),
    "disable_adapters": (EQUAL, after_adding("disable_adapters")),
    "enable_adapters": (EQUAL, after_adding("enable_adapters")),
    "set_adapter": (EQUAL, after_adding("set_adapter", "default")),
    "enable_peft_hotswap": (EQUAL, calling("enable_peft_hotswap")),
    "dequantize": ("first quantize", calling("dequantize")),
    "disable_input_require_grads": (
        EQUAL,
        setting(lambda net: (net.enable_input_require_grads(), net.disable_input_require_grads())),
    ),
    "enable_input_require_grads": (EQUAL, calling("enable_input_require_grads")),
    "from_pretrained": (
        "nothing is random",
        lambda net, folder: (net.save_pretrained(folder), type(net).from_pretrained(folder))[1],
    ),
    "init_weights": (COMMUTES, calling("init_weights")),
    "initialize_weights": (COMMUTES, calling("initialize_weights")),
    "post_init": (COMMUTES, calling("post_init")),
    "register_for_auto_class": (EQUAL, lambda net, _: net),
    "resize_position_embeddings": ("not implemented", calling("resize_position_embeddings", 8)),
    "resize_token_embeddings": (COMMUTES, calling("resize_token_embeddings", 30)),
    "save_pretrained": (EQUAL, saved),
    "set_attn_implementation": (EQUAL, calling("set_attn_implementation", "eager")),
    "set_experts_implementation": (EQUAL, calling("set_experts_implementation", "eager")),
    "set_input_embeddings": (
        EQUAL,
        setting(lambda net: net.set_input_embeddings(copy.deepcopy(net.get_input_embeddings()))),
    ),
    "set_use_kernels": (EQUAL, calling("set_use_kernels", False)),
    "tie_weights": (EQUAL, calling("tie_weights")),
}
PEFT = {
    "add_adapter": (EQUAL, calling("add_adapter", "other", peft.LoraConfig(**LORA))),
    "delete_adapter": (
        EQUAL,
        setting(lambda net: (net.add_adapter("other", peft.LoraConfig(**LORA)), net.delete_adapter("other"))),
    ),
    "disable_adapter": (EQUAL, calling("disable_adapter")),
    "get_base_model": (EQUAL, lambda net, _: net.get_base_model()),
    "merge_and_unload": (EQUAL, lambda net, _: net.merge_and_unload()),
    "merge_adapter": (EQUAL, calling("merge_adapter")),
    "unmerge_adapter": (EQUAL, setting(lambda net: (net.merge_adapter(), net.unmerge_adapter()))),
    "unload": (EQUAL, lambda net, _: net.unload()),
    "prepare_model_for_gradient_checkpointing": (
        EQUAL,
        setting(lambda net: net.prepare_model_for_gradient_checkpointing(net.get_base_model())),
    ),
    "save_pretrained": (EQUAL, lambda net, folder: (net.save_pretrained(str(folder)), net)[1]),
    "from_pretrained": (
        EQUAL,
        lambda net, folder: (
            net.save_pretrained(str(folder)),
            peft.PeftModel.from_pretrained(converted(plain()), str(folder)),
        )[1],
    ),
    "load_adapter": (
        EQUAL,
        setting(lambda net: (net.save_pretrained("adapter"), net.load_adapter("adapter", "again"))),
    ),
    "set_adapter": (EQUAL, calling("set_adapter", "default")),
    "set_requires_grad": (EQUAL, calling("set_requires_grad", "default")),
}
TRAINER = {
    "train": ("without a driver", training("train")),
    "training_step": ("without a driver", training("train")),
    "evaluate": (EQUAL, training("evaluate")),
    "evaluation_loop": (EQUAL, training("evaluate")),
    "predict": (EQUAL, lambda net, folder: ((t := trainer(net, folder)).predict(t.eval_dataset), net)[1]),
    "prediction_step": (EQUAL, training("evaluate")),
    "create_optimizer": (EQUAL, training("create_optimizer")),
    "create_optimizer_and_scheduler": (EQUAL, training("create_optimizer_and_scheduler", 1)),
    "create_accelerator_and_postprocess": (EQUAL, training("create_accelerator_and_postprocess")),
    "save_model": (EQUAL, training("save_model")),
    "save_state": (EQUAL, training("save_state")),
    "create_model_card": (EQUAL, training("create_model_card")),
}
ACCELERATE = {
    "cpu_offload": ("from device meta", lambda net, _: accelerate.cpu_offload(net, execution_device="cpu")),
    "cpu_offload_with_hook": (
        EQUAL,
        lambda net, _: accelerate.cpu_offload_with_hook(net, execution_device="cpu")[0],
    ),
    "disk_offload": (
        "from device meta",
        lambda net, folder: accelerate.disk_offload(net, str(folder), execution_device="cpu"),
    ),
    "dispatch_model": (
        EQUAL,
        lambda net, _: accelerate.dispatch_model(net, {"": "cpu"}, force_hooks=True),
    ),
    "load_checkpoint_in_model": (EQUAL, loaded_checkpoint),
    "load_checkpoint_and_dispatch": (EQUAL, dispatched_checkpoint),
}
ACCELERATOR = {
    "prepare": (EQUAL, prepared),
    "prepare_model": (EQUAL, lambda net, _: accelerate.Accelerator(cpu=True).prepare_model(net)),
    "prepare_optimizer": (
        EQUAL,
        lambda net, _: (
            accelerate.Accelerator(cpu=True).prepare_optimizer(torch.optim.SGD(net.parameters(), 0.1)),
            net,
        )[1],
    ),
    "unwrap_model": (EQUAL, unwrapped),
    "save_state": (EQUAL, restored),
    "load_state": (EQUAL, restored),
    "save_model": (
        EQUAL,
        lambda net, folder: (accelerate.Accelerator(cpu=True).save_model(net, str(folder)), net)[1],
    ),
    "free_memory": (EQUAL, lambda net, _: (accelerate.Accelerator(cpu=True).free_memory(), net)[1]),
    "clear": (EQUAL, lambda net, _: (accelerate.Accelerator(cpu=True).clear(), net)[1]),
}
ATTRIBUTES = {
    "config._attn_implementation": (
        EQUAL,
        setting(lambda net: setattr(net.config, "_attn_implementation", "eager")),
    ),
    "config of every module": (EQUAL, setting(each_config)),
    "flash attention": (
        "set to 'flash' after conversion",
        setting(lambda net: setattr(net.config, "_attn_implementation", "flash")),
    ),
    "config": (
        "expected the configuration",
        setting(lambda net: setattr(net.bert, "config", plain().config)),
    ),
    "config of a module": (
        "expected the configuration",
        setting(lambda net: setattr(attention(net), "config", plain().config)),
    ),
    "forward of a module": (
        "was not reached",
        setting(lambda net: setattr(attention(net, 1), "forward", lambda hidden, *_, **__: (hidden, None))),
    ),
    "forward of what holds the modules": ("was not reached", setting(bypassed)),
    "module": ("put into a converted network", setting(replaced)),
    "no submodule": ("was not reached", setting(lambda net: delattr(attention(net, 1), "probattn"))),
    "output_attentions": (
        EQUAL,
        setting(
            lambda net: (
                setattr(net.config, "_attn_implementation", "eager"),
                setattr(net.config, "output_attentions", True),
            )
        ),
    ),
    "deepcopy": (EQUAL, lambda net, _: copy.deepcopy(net)),
    "copy": (EQUAL, lambda net, _: copy.copy(net)),
}
HARMLESS = {
    "torch": """
    buffers children cuda extra_repr forward get_buffer get_extra_state get_parameter get_submodule ipu
    modules mtia named_buffers named_children named_modules named_parameters parameters set_extra_state smart_apply
    state_dict xpu
    """,
    "transformers": """
    active_adapters add_model_tags barrier_after_gathered_checkpoint_save can_generate
    gather_sharded_state_dict_for_save generation_config_class get_adapter_state_dict get_compiled_call
    get_correct_attn_implementation get_correct_experts_implementation get_decoder get_encoder
    get_expanded_tied_weights_keys get_experts_implementation get_init_context get_input_embeddings
    get_memory_footprint get_output_embeddings get_parameter_or_buffer get_position_embeddings
    init_parallel_plans is_backend_compatible is_custom_code is_remote_code load_adapter
    mark_tied_weights_as_initialized maybe_distribute_model named_non_persistent_buffers num_parameters
    prepare_distribute_model push_to_hub retrieve_modules_from_names save_distributed_checkpoint set_decoder
    set_encoder set_output_embeddings should_save_on_this_rank warn_if_padding_and_no_attention_mask
    """,
    "peft": """
    create_or_update_model_card forward generate get_layer_status get_model_status get_nb_trainable_parameters
    get_prompt get_prompt_embedding_to_save print_trainable_parameters push_to_hub supports_lora_conversion
    """,
    "trainer": """
    add_callback autocast_smart_context_manager call_model_init compute_loss compute_loss_context_manager
    create_scheduler end floating_point_ops get_batch_samples get_cp_size get_decay_parameter_names
    get_eval_dataloader get_learning_rates get_num_trainable_parameters get_optimizer_cls_and_kwargs
    get_optimizer_group get_sp_size get_test_dataloader get_total_train_batch_size get_tp_size
    get_train_dataloader hyperparameter_search init_hf_repo is_local_process_zero is_world_process_zero log
    log_metrics metrics_format num_examples pop_callback push_to_hub remove_callback save_metrics
    set_initial_training_values store_flos
    """,
    "accelerator": """
    accumulate autocast backward check_trigger clip_grad_norm_ clip_grad_value_ deepspeed_ulysses_dl_adapter
    end_training gather gather_for_metrics get_state_dict get_tracker init_trackers join_uneven_inputs
    local_main_process_first log lomo_backward main_process_first maybe_context_parallel no_sync
    on_last_process on_local_main_process on_local_process on_main_process on_process pad_across_processes
    prepare_data_loader prepare_scheduler print profile reduce register_for_checkpointing
    register_load_state_pre_hook register_save_state_pre_hook save set_trigger skip_first_batches
    split_between_processes trigger_sync_in_backward unscale_gradients verify_device_map wait_for_everyone
    """,
}
"""Methods that read, that need another device or the network, or that a method of the tables calls."""
