# gpu: 1398MiB
# cause: none
# needs: transformers accelerate trl datasets
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{i}": i + 3 for i in range(100)}}
backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
config = Qwen2Config(vocab_size=40000, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
                     num_attention_heads=4, num_key_value_heads=2)
model = Qwen2ForCausalLM(config)
dataset = Dataset.from_dict({"text": [" ".join(f"w{i % 100}" for i in range(200))] * 16})
args = SFTConfig(output_dir="sft", per_device_train_batch_size=8, max_steps=2, report_to="none",
                 save_strategy="no", disable_tqdm=True, bf16=False, gradient_checkpointing=False)
trainer = SFTTrainer(model=model, args=args, train_dataset=dataset, processing_class=tokenizer)
trainer.train()
